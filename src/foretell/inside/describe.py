"""Describes a training job by its first forward pass: layers, convolutions, and what autograd saves.

Out come plain values, the fields of `foretell.features.JobFeatures`. The pass may run on the virtual GPU or on the meta
device, and computes nothing on either. A dispatch mode sees every operator below autograd, so functional convolutions
are seen like modules; saved tensors are counted by storage. Not for a run whose memory is looked at: the mode changes
it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_BLOCK = 512
_CONVOLUTION = "aten::convolution"
_PRODUCTS = {"aten::convolution", "aten::addmm", "aten::mm", "aten::bmm", "aten::linear"}


class Described(BaseException):
    """Ends a script once its job has been described: not an Exception, which scripts catch."""


class FirstForward(TorchDispatchMode):  # type: ignore[misc]
    """Records forward passes from the first call of a model up to the first backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._saved: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._saved_bytes = 0
        self._constant: set[int] = set()
        """Storages of parameters and buffers."""
        self._trained: dict[int, int] = {}
        """Bytes of those parameters whose gradients are computed, by storage."""
        self._used: set[int] = set()
        self._used_bytes = 0
        self._operators: list[tuple[int, int, int, int]] = []
        """For each: saved before it, bytes of its inputs, of its outputs, and of parameters used before it."""
        self._convolutions: list[dict[str, Any]] = []
        self._layers: list[dict[str, Any]] = []
        self._roots: list[torch.nn.Module] = []
        self._inputs: list[torch.Tensor] = []
        self._created: set[int] = set()
        self._product_bytes: int | None = None
        self._depth = 0
        self._earlier_bytes = 0
        self._handles: list[Any] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved)
        self._is_recording = False

    def install(self) -> None:
        """Wait for the first call of a model."""
        module = torch.nn.modules.module
        self._handles = [
            module.register_module_forward_pre_hook(self._before_module),
            module.register_module_forward_hook(self._after_module, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._inputs.clear()
        if self._is_recording:
            self._is_recording = False
            self._hooks.__exit__()
            self.__exit__(None, None, None)

    # --- while the model runs -----------------------------------------------------------------------------------------

    def _before_module(self, module: torch.nn.Module, args: Any) -> None:
        if self._depth == 0:
            self._enter_root(module)
        self._depth += 1

    def _enter_root(self, module: torch.nn.Module) -> None:
        if not torch.is_grad_enabled() or not any(True for _ in module.parameters()):
            return
        if not self._alive():  # earlier passes were never used: a summary of the model
            self._start_again()
        self._roots.append(module)
        for parameter in module.parameters():
            storage = _storage(parameter)
            self._constant.add(storage)
            if parameter.requires_grad:
                self._trained[storage] = _bytes(parameter)
        self._constant.update(_storage(buffer) for buffer in module.buffers())
        if not self._is_recording:
            self._is_recording = True
            self._hooks.__enter__()
            self.__enter__()

    def _after_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._is_recording and not module._modules:
            elements = sum(each.numel() for each in _tensors(output))
            parameters = sum(each.numel() for each in module.parameters(recurse=False))
            self._layers.append({"kind": type(module).__name__, "activations": elements, "parameters": parameters})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        inputs, outputs = list(_tensors(args)), list(_tensors(output))
        before = {_storage(each) for each in inputs}
        new = {_storage(each): _bytes(each) for each in outputs if _storage(each) not in before}
        # Arguments of a model may be positional, by name, or inside of something: what it reads tells them.
        self._inputs += [each for each in inputs if _storage(each) not in self._created | self._constant]
        self._created |= before | new.keys()
        if not new:
            return output  # a view, or in place
        used_before = self._used_bytes
        for storage in before & self._trained.keys() - self._used:
            self._used.add(storage)
            self._used_bytes += self._trained[storage]
        activations = {_storage(each): _bytes(each) for each in inputs if _storage(each) not in self._constant}
        sizes = (self._saved_bytes, sum(activations.values()), sum(new.values()), used_before)
        self._operators.append(sizes)
        name = func._schema.name
        if name in _PRODUCTS:
            self._product_bytes = outputs[0].element_size()
        if name == _CONVOLUTION:
            self._convolutions.append(_convolution(args, outputs[0], self._saved_bytes, used_before))
        return output

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        # Not the tensor itself: an operator that saves its result would hold itself, and a script that ends before its
        # backward pass would leave all of it.
        storage, tensor = _storage(tensor), tensor.detach()
        if storage in self._constant:
            return tensor
        known = self._saved.get(storage)
        if known is None or known[0]() is None:
            size = _bytes(tensor)
            self._saved[storage] = (weakref.ref(tensor), size)
            self._saved_bytes += size
        return tensor

    def _alive(self) -> int:
        return sum(size for reference, size in self._saved.values() if reference() is not None)

    def _start_again(self) -> None:
        self._earlier_bytes = max(self._earlier_bytes, self._saved_bytes)
        self._saved.clear()
        self._saved_bytes = self._used_bytes = 0
        for records in (self._operators, self._convolutions, self._layers, self._roots, self._inputs):
            records.clear()
        self._used.clear()
        self._created.clear()

    @property
    def is_under_way(self) -> bool:
        """Whether something is saved for a backward pass."""
        return self._alive() > 0

    # --- what was seen ------------------------------------------------------------------------------------------------

    def description(self, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any] | None:
        """None if no model was called with gradients."""
        if not self._roots:
            return None
        parameters = list({id(each): each for root in self._roots for each in root.parameters()}.values())
        buffers = {_storage(each): _bytes(each) for root in self._roots for each in root.buffers()}
        trained = [each for each in parameters if each.requires_grad]
        trained_bytes = _total(trained)
        first = self._inputs[0] if self._inputs else None
        sizes = sorted((out for _, _, out, _ in self._operators), reverse=True)
        forward = max((saved + given + out for saved, given, out, _ in self._operators), default=0)
        backward = max(
            (saved + given + out + trained_bytes - used for saved, given, out, used in self._operators), default=0
        )
        for each in self._convolutions:
            each["gradient_bytes"] = trained_bytes - each.pop("used_bytes")
        return {
            "layers": self._layers,
            "batch_size": int(first.shape[0]) if first is not None and first.dim() else None,
            "input_shape": list(first.shape) if first is not None else None,
            "input_bytes": _total(self._inputs),
            "parameters": sum(each.numel() for each in parameters),
            "parameter_bytes": _total(parameters),
            "trainable_bytes": trained_bytes,
            "buffer_bytes": sum(buffers.values()),
            "saved_bytes": self._alive(),
            "output_bytes": sum(sizes),
            "forward_peak_bytes": forward,
            "backward_peak_bytes": backward,
            "largest_bytes": sizes[0] if sizes else 0,
            "second_bytes": sizes[1] if len(sizes) > 1 else 0,
            "convolutions": self._convolutions,
            "num_tensors": len(trained),
            "largest_parameter_bytes": max((_bytes(each) for each in parameters), default=0),
            "element_bytes": self._product_bytes,
            "earlier_bytes": self._earlier_bytes,
            "torch_version": str(torch.__version__),
            **_optimizer(optimizers),
        }


class Catcher:
    """Catches the job at its first backward pass."""

    def __init__(self, caught: Callable[[dict[str, Any]], None]) -> None:
        self._caught = caught
        self._first = FirstForward()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._zero_grad: dict[str, Any] = {"zero_grad": "later"}
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Catcher:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def install(self) -> None:
        self._first.install()
        self._wrap(torch.autograd, "backward", self._before_backward)
        self._wrap(torch.autograd, "grad", self._before_backward)
        self._wrap(torch.optim.Optimizer, "__init__", self._before_optimizer)
        self._wrap(torch.optim.Optimizer, "zero_grad", self._before_zero_grad)
        self._wrap(torch.nn.Module, "zero_grad", self._before_zero_grad)

    def remove(self) -> None:
        self._first.remove()
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, before: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, original))

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        self._optimizers.append(optimizer)

    def _before_zero_grad(self, owner: Any, set_to_none: bool = True) -> None:
        place = "before_backward" if self._first.is_under_way else "before_forward"
        self._zero_grad = {"zero_grad": place, "keeps_gradients": not set_to_none}

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        description = self._first.description(self._optimizers)
        if description is not None:
            description |= self._zero_grad
            self.remove()
            self._optimizers.clear()
            self._caught(description)


def _convolution(args: Any, output: torch.Tensor, saved_bytes: int, used_bytes: int) -> dict[str, Any]:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)"""
    given, weight, _, stride, padding, dilation, is_transposed, _, groups = args
    x, y = (output, given) if is_transposed else (given, output)
    return {
        "x": list(x.shape),
        "y": list(y.shape),
        "w": list(weight.shape),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": int(groups),
        "is_transposed": bool(is_transposed),
        "is_channels_last": given.dim() == 4 and given.is_contiguous(memory_format=torch.channels_last)
        and not given.is_contiguous(),
        "element_bytes": given.element_size(),
        "saved_bytes": saved_bytes,
        "used_bytes": used_bytes,
    }  # fmt: skip


def _optimizer(optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Of the one with the most parameters; before its first step, so that states are told by its name and options."""
    if not optimizers:
        return {}

    def size(optimizer: torch.optim.Optimizer) -> int:
        return sum(each.numel() for group in optimizer.param_groups for each in group["params"])

    most = max(optimizers, key=size)
    group = most.param_groups[0]
    return {
        "optimizer": type(most).__name__,
        "momentum": bool(group.get("momentum", 0)),
        "foreach": "foreach" in group and group["foreach"] is not False and not group.get("fused"),
    }


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _storage(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # sparse
        return id(tensor)


def _bytes(tensor: torch.Tensor) -> int:
    """Of the whole storage, in blocks of the allocator."""
    try:
        size = tensor.untyped_storage().nbytes()
    except NotImplementedError:
        size = tensor.numel() * tensor.element_size()
    return -(-int(size) // _BLOCK) * _BLOCK


def _total(tensors: Any) -> int:
    return sum({_storage(each): _bytes(each) for each in tensors}.values())

