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
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from ..rules import attention
from ..rules.convolution_workspaces import workspaces_of_call
from ..rules.cublas import workspaces as product_workspaces
from ..rules.optimizers import num_states, num_temporaries
from ..rules.reductions import column_sums_bytes
from ..versions import NEWEST_TORCH, Version, parse_version
from . import played
from .work import Sums

_BLOCK = 512
_LARGER = 4
"""A batch so many times as large is played, too."""
_CONVOLUTION = "aten::convolution"
_PRODUCTS = {"aten::convolution", "aten::addmm", "aten::mm", "aten::bmm", "aten::linear"}
_CUTS = {"aten::select", "aten::slice", "aten::diagonal", "aten::unfold", "aten::as_strided"}
_KEEPS_RESULT = frozenset(
    ("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "_softmax", "_log_softmax", "exp", "sqrt", "rsqrt",
     "reciprocal", "logsumexp", "norm", "std", "elu_", "selu_", "leaky_relu_", "hardtanh_", "celu_")
)  # fmt: skip
"""Operators that save their first result for the backward pass; further ones are saved by all that have some."""


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
        self._work = Sums()
        self._tape = played.Tape()
        self._numbers: dict[int, int] = {}
        """Of storages, on the tape; an address may stand for another one later."""
        self._num_storages = 0
        self._device: torch.device | None = None
        self._parameter_bytes = 4
        self._cut: set[tuple[int, int, int]] = set()
        """Views of a part: storage, offset and bytes."""
        self._alive_storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._pending: list[int] = []
        """Saved by the operator that comes next."""
        self._layers: list[dict[str, Any]] = []
        self._results: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._roots: list[torch.nn.Module] = []
        self._inputs: list[torch.Tensor] = []
        self._created: set[int] = set()
        self._product_bytes: int | None = None
        self._depth = 0
        self._earlier_bytes = 0
        self._handles: list[Any] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved)
        self._has_hooks = False
        """They are on the stack of hooks of this thread."""
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
            if self._has_hooks:
                self._has_hooks = False
                self._hooks.__exit__()
            self.__exit__(None, None, None)
        # A package that was imported meanwhile may hold a wrapped function, and with it this object, for good.
        self._roots.clear()

    # --- while the model runs -----------------------------------------------------------------------------------------

    def _before_module(self, module: torch.nn.Module, args: Any) -> None:
        if self._depth == 0:
            self._enter_root(module)
        self._depth += 1

    def _enter_root(self, module: torch.nn.Module) -> None:
        if not torch.is_grad_enabled() or not any(True for _ in module.parameters()):
            return
        is_within = _has_other_hooks() and not self._has_hooks
        if not self._alive() and not is_within:  # earlier passes were never used: a summary of the model
            self._start_again()
        self._roots.append(module)
        parameter = next(module.parameters())
        self._device, self._parameter_bytes = parameter.device, parameter.element_size()
        for parameter in module.parameters():
            storage = _storage(parameter)
            self._constant.add(storage)
            if parameter.requires_grad:
                self._trained[storage] = _bytes(parameter)
        self._constant.update(_storage(buffer) for buffer in module.buffers())
        if not self._is_recording:
            self._is_recording = True
            self.__enter__()
        if not self._has_hooks and not is_within:  # those of a checkpoint leave from the top, where these would be
            self._has_hooks = True
            self._hooks.__enter__()

    def _after_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._is_recording and not module._modules:
            elements = sum(each.numel() for each in _tensors(output))
            parameters = sum(each.numel() for each in module.parameters(recurse=False))
            self._layers.append({"kind": type(module).__name__, "activations": elements, "parameters": parameters})
        if self._is_recording and self._depth == 0:
            self._results += [(weakref.ref(each), self._number(_storage(each))) for each in _tensors(output)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        inputs = list(_tensors(args))
        storages = [_storage(each) for each in inputs]
        before = set(storages)
        new = {storage: each for each in _tensors(output) if (storage := _storage(each)) not in before}
        # Arguments of a model may be positional, by name, or inside of something: what it reads tells them.
        known, constant = self._created, self._constant
        self._inputs += [
            each
            for each, storage in zip(inputs, storages, strict=True)
            if storage not in known and storage not in constant
        ]
        known.update(before, new)
        name = func._schema.name
        is_view = not new and not func._schema.is_mutable
        weight_bytes = sum(
            each.numel() * each.element_size()
            for each, storage in zip(inputs, storages, strict=True)
            if storage in constant
        )
        made = list(new.values()) or list(_tensors(output))[:1]
        self._work.add(name.removeprefix("aten::"), inputs, made, weight_bytes, is_view=is_view)
        if is_view:
            if name in _CUTS:
                whole = inputs[0].numel()
                self._cut.update(self._place(each, storages[0]) for each in _tensors(output) if each.numel() < whole)
            return output  # a view
        operator = self._on_tape(name.removeprefix("aten::"), inputs, storages, new)
        if not new:
            return output
        sizes = {storage: _bytes(each) for storage, each in new.items()}
        used_before = self._used_bytes
        for storage in before & self._trained.keys() - self._used:
            self._used.add(storage)
            self._used_bytes += self._trained[storage]
        activations = {
            storage: _bytes(each) for each, storage in zip(inputs, storages, strict=True) if storage not in constant
        }
        self._operators.append((self._saved_bytes, sum(activations.values()), sum(sizes.values()), used_before))
        if name in _PRODUCTS:
            self._product_bytes = next(iter(new.values())).element_size()
        if name == _CONVOLUTION:
            operator.convolution = len(self._convolutions)
            self._convolutions.append(_convolution(args, output, self._saved_bytes, used_before))
        return output

    def _number(self, storage: int) -> int:
        number = self._numbers.get(storage)
        if number is None:
            self._num_storages += 1
            number = self._numbers[storage] = self._num_storages
        return number

    def _place(self, tensor: torch.Tensor, storage: int) -> tuple[int, int, int]:
        offset = 0 if tensor.is_sparse else tensor.storage_offset()
        return self._number(storage), offset, _read_bytes(tensor)

    def _on_tape(
        self, name: str, inputs: list[torch.Tensor], storages: list[int], new: dict[int, torch.Tensor]
    ) -> played.Operator:
        places = [self._place(each, storage) for each, storage in zip(inputs, storages, strict=True)]
        reads = [
            (*place, each.requires_grad, place in self._cut) for place, each in zip(places, inputs, strict=True)
        ]
        makes = []
        for storage, tensor in new.items():
            self._num_storages += 1
            self._numbers[storage] = self._num_storages
            if tensor.device == self._device:
                makes.append((self._num_storages, _bytes(tensor)))
                self._watch(self._num_storages, tensor)
        operator = played.Operator(name, reads, makes, None if makes or not reads else reads[0][0])
        if name.startswith("_scaled_dot_product"):
            operator.sums = _attention_sums(name, inputs)
        elif name in ("addmm", "add") and new:
            operator.sums = _bias_sums(inputs, next(iter(new.values())))
        operators = self._tape.operators
        operators.append(operator)
        if self._pending:
            operator.saves += self._pending
            self._pending.clear()
        return operator

    def _watch(self, number: int, tensor: torch.Tensor) -> None:
        """Note on the tape when nobody holds the storage any more."""
        if tensor.is_sparse:
            return
        operators = self._tape.operators

        def freed(reference: object) -> None:
            self._alive_storages.pop(number, None)
            if operators:
                operators[-1].frees.append(number)

        self._alive_storages[number] = weakref.ref(tensor.untyped_storage(), freed)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        # Not the tensor itself: an operator that saves its result would hold itself, and a script that ends before its
        # backward pass would leave all of it.
        storage, tensor = _storage(tensor), tensor.detach()
        if storage in self._constant:
            return tensor
        self._note_saved(self._number(storage))
        known = self._saved.get(storage)
        if known is None or known[0]() is None:
            size = _bytes(tensor)
            self._saved[storage] = (weakref.ref(tensor), size)
            self._saved_bytes += size
        return tensor

    def _note_saved(self, number: int) -> None:
        """By the operator that has just made it, or by the next one, which reads it."""
        last = self._tape.operators[-1] if self._tape.operators else None
        if last is not None:
            made = [made for made, _ in last.makes]
            is_first = made[:1] == [number] or last.changes == number
            keeps_result = last.name in _KEEPS_RESULT or last.name.startswith("_scaled_dot_product")
            if number in made[1:] or (is_first and keeps_result):
                last.saves.append(number)
                return
        self._pending.append(number)

    def _alive(self) -> int:
        return sum(size for reference, size in self._saved.values() if reference() is not None)

    def _start_again(self) -> None:
        self._earlier_bytes = max(self._earlier_bytes, self._saved_bytes)
        self._saved.clear()
        self._saved_bytes = self._used_bytes = 0
        for records in (
            self._operators, self._convolutions, self._layers, self._results, self._roots, self._inputs
        ):
            records.clear()
        self._used.clear()
        self._created.clear()
        self._work, self._tape = Sums(), played.Tape()
        self._numbers.clear()
        self._pending.clear()
        self._cut.clear()
        self._alive_storages.clear()

    @property
    def is_under_way(self) -> bool:
        """Whether something is saved for a backward pass."""
        return self._alive() > 0

    # --- what was seen ------------------------------------------------------------------------------------------------

    def description(
        self,
        optimizers: list[torch.optim.Optimizer],
        loss: torch.Tensor | None,
        zero_grad: dict[str, Any],
        capability: tuple[int, int] | None,
    ) -> dict[str, Any] | None:
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
            "work": self._work.plain(),
            "earlier_bytes": self._earlier_bytes,
            "torch_version": str(torch.__version__),
            **zero_grad,
            **_optimizer(optimizers),
        } | self._played(optimizers, loss, zero_grad, capability)

    def _played(
        self,
        optimizers: list[torch.optim.Optimizer],
        loss: torch.Tensor | None,
        zero_grad: dict[str, Any],
        capability: tuple[int, int] | None,
    ) -> dict[str, Any]:
        tape = self._tape
        saved = {number for each in tape.operators for number in each.saves}
        tape.results = {number for reference, number in self._results if reference() is not None}
        tape.results |= self._alive_storages.keys() - saved
        tape.loss = None if loss is None else self._numbers.get(_storage(loss))
        tape.inputs = [(self._number(_storage(each)), _bytes(each)) for each in self._inputs]
        for root in self._roots:
            for each in _constants(root):
                tape.constants[self._number(_storage(each))] = (_bytes(each), each.requires_grad)
        version = parse_version(str(torch.__version__)) or NEWEST_TORCH
        products = product_workspaces(capability or (8, 0), version)
        optimizer = _optimizer(optimizers)
        is_on_lists = bool(optimizer.get("foreach"))
        saved_bytes = self._alive()
        settings = played.Settings(
            num_states=num_states(optimizer.get("optimizer"), has_momentum=bool(optimizer.get("momentum"))),
            num_temporaries=num_temporaries(
                optimizer.get("optimizer"), works_on_lists=is_on_lists, element_bytes=self._parameter_bytes
            ),
            works_on_lists=is_on_lists,
            zero_grad=zero_grad["zero_grad"],
            keeps_gradients=bool(zero_grad.get("keeps_gradients")),
            earlier_share=self._earlier_bytes / saved_bytes if saved_bytes else 0.0,
            product_bytes=products.num_bytes,
            is_product_kept=products.is_kept,
        )
        found: dict[str, Any] = {"played_bytes": played.reserved_bytes(tape, settings)}
        workspaces: list[tuple[int, int, int]] = []
        if capability is not None:
            workspaces = [_workspaces(each, capability, version) for each in self._convolutions]
            has_some = any(map(any, workspaces))
            with_some = played.reserved_bytes(tape, settings, workspaces) if has_some else found["played_bytes"]
            found |= {"played_workspace_bytes": with_some, "compute_capability": list(capability)}
        larger = played.reserved_bytes(tape, settings, workspaces, ratio=_LARGER)
        now = found.get("played_workspace_bytes", found["played_bytes"])
        found["played_growth_bytes"] = max(0, larger - now) // (_LARGER - 1)
        return found


class Catcher:
    """Catches the job at its first backward pass."""

    def __init__(
        self, caught: Callable[[dict[str, Any]], None], *, compute_capability: tuple[int, int] | None = None
    ) -> None:
        """`compute_capability`: of the card, if this process sees none."""
        self._caught = caught
        self._capability = compute_capability
        self._first = FirstForward()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._zero_grad: dict[str, Any] = {"zero_grad": "later"}
        self._is_checkpointed = False
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
        self._wrap(torch.utils.checkpoint, "checkpoint", self._before_checkpoint)

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

    def _before_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._is_checkpointed = self._is_checkpointed or torch.is_grad_enabled()

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        loss = next(_tensors([args, kwargs]), None)
        capability = self._capability
        if capability is None and torch.cuda.is_initialized():
            capability = torch.cuda.get_device_capability()
        description = self._first.description(self._optimizers, loss, self._zero_grad, capability)
        if description is not None:
            description["is_checkpointed"] = self._is_checkpointed
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


def _workspaces(call: dict[str, Any], capability: tuple[int, int], version: Version) -> tuple[int, int, int]:
    shape = {name: value for name, value in call.items() if name not in ("saved_bytes", "gradient_bytes")}
    return workspaces_of_call(**shape, compute_capability=capability, torch_version=version)


def _attention_sums(name: str, inputs: list[torch.Tensor]) -> tuple[int, ...]:
    query, key, value = inputs[:3]
    if name.startswith("_scaled_dot_product_flash"):
        return attention.flash_sums(tuple(query.shape), tuple(key.shape), query.element_size())
    if name.startswith("_scaled_dot_product_efficient"):
        dtype = str(query.dtype).removeprefix("torch.")
        sums = attention.efficient_sums(tuple(query.shape), tuple(value.shape), dtype)
        return sums.delta, max(sums.product, sums.workspace)
    return ()


def _bias_sums(inputs: list[torch.Tensor], output: torch.Tensor) -> tuple[int, ...]:
    """To add up the gradient of what was broadcast over rows."""
    sizes = [each.numel() for each in inputs if each.requires_grad and each.numel() < output.numel()]
    return (column_sums_bytes(output.numel() // sizes[0], sizes[0]),) if sizes and sizes[0] else ()


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


def _constants(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers in the order in which `Module.to` moves them."""
    for child in module.children():
        yield from _constants(child)
    yield from (each for each in module._parameters.values() if each is not None)
    yield from (each for each in module._buffers.values() if each is not None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _has_other_hooks() -> bool:
    """Whether somebody's hooks for saved tensors are on top of the stack."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


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


def _read_bytes(tensor: torch.Tensor) -> int:
    return -(-int(tensor.numel()) * int(tensor.element_size()) // _BLOCK) * _BLOCK


def _total(tensors: Any) -> int:
    return sum({_storage(each): _bytes(each) for each in tensors}.values())

