"""Skips the random initialisation of big CPU weights, and makes casting and copying them free.

Skipped: random fills of CPU floating-point tensors with at least 64 Ki elements that are registered parameters (or
share their storage, as `weight.data` does). Their pages are returned to the kernel, so such a weight reads as zeros:
finite numbers, without memory behind them. Constants (zeros, ones) stay real, and so does every tensor that is not a
parameter. Random numbers drawn later differ from those without skipping, as with another seed.

`Module._apply` (`.to`, `.half`, `.cuda` ...) casts a big CPU weight by casting only the pages that exist, and
`copy.deepcopy` copies only those: no pages, no work. This needs no bookkeeping per weight, so loading a checkpoint into
it, tying it or writing a row by hand needs no special care.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from ..capture import Capture
from ..files import pages
from ..patches import Patch

FEWEST_ELEMENTS = 64 * 1024
RANDOM_METHODS = ("normal_", "uniform_", "exponential_", "cauchy_", "log_normal_", "geometric_")
RANDOM_INITS = ("trunc_normal_", "orthogonal_", "sparse_")
"""torch.nn.init functions that combine several of the methods above."""


class _Skipping:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._parameters: dict[int, weakref.ref[Any]] = {}
        """Address of the storage -> the registered parameter."""

    def note(self, module: Any, name: str, parameter: Any) -> None:
        if self.is_big_cpu_weight(parameter):
            address = parameter.untyped_storage().data_ptr()
            self._parameters[address] = weakref.ref(parameter)

    def is_parameter(self, tensor: Any) -> bool:
        if not self.is_big_cpu_weight(tensor):
            return False
        address = tensor.untyped_storage().data_ptr()
        reference = self._parameters.get(address)
        parameter = reference() if reference is not None else None
        return parameter is not None and parameter.untyped_storage().data_ptr() == address

    def is_big_cpu_weight(self, tensor: Any) -> bool:
        torch = self.torch
        return (
            isinstance(tensor, torch.Tensor)
            and type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.layout == torch.strided
            and tensor.is_floating_point()
            and tensor.numel() >= FEWEST_ELEMENTS
        )

    def skip(self, tensor: Any) -> None:
        if tensor.untyped_storage().is_shared() or not tensor.is_contiguous():
            tensor.detach().zero_()
        else:
            # The heap may hold old bytes, NaN among them; released pages read as zeros.
            pages.release(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def cast(self, tensor: Any, dtype: Any) -> Any | None:
        """A copy in another type, made from the pages that exist; None if a full copy costs no more."""
        torch = self.torch
        storage = tensor.untyped_storage()
        size = tensor.element_size()
        if tensor.storage_offset() != 0 or tensor.numel() * size != storage.nbytes() or storage.is_shared():
            return None
        ranges = pages.existing_ranges(storage.data_ptr(), storage.nbytes())
        if ranges is None or 2 * sum(length for _, length in ranges) > storage.nbytes():
            return None
        with torch.no_grad():
            result = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
            if result.stride() != tensor.stride():
                return None
            pages.release(result.untyped_storage().data_ptr(), result.untyped_storage().nbytes())
            source, target = _in_memory_order(torch, tensor), _in_memory_order(torch, result)
            for offset, length in ranges:
                first, end = offset // size, -(-(offset + length) // size)
                target[first:end].copy_(source[first:end])
        return result


def install(capture: Capture, torch: Any) -> None:
    skipping = _Skipping(torch)
    patches = capture.patches
    handle = torch.nn.modules.module.register_module_parameter_registration_hook(skipping.note)
    patches.added("a hook for each new parameter", handle.remove)
    for name in RANDOM_METHODS:
        patches.wrap(torch.Tensor, name, partial(_skipping_method, skipping))
    skip_function = partial(_skipping_function, skipping)
    for name in RANDOM_INITS:
        patches.wrap(torch.nn.init, name, skip_function)
    # timm has its own truncated normal
    capture.imports.when_imported(
        "timm.layers.weight_init", lambda timm: patches.wrap(timm, "_trunc_normal_", skip_function)
    )
    apply: Patch = patches.wrap(
        torch.nn.Module, "_apply", lambda original: _cheap_apply(skipping, original, lambda: apply)
    )
    patches.wrap(torch.nn.Parameter, "__deepcopy__", partial(_cheap_deepcopy, skipping))


def _skipping_method(skipping: _Skipping, original: Any) -> Any:
    @wraps(original)
    def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() < FEWEST_ELEMENTS or not skipping.is_parameter(tensor):
            return original(tensor, *args, **kwargs)
        _check_as_torch_would(skipping, original, tensor, args, kwargs)
        skipping.skip(tensor)
        return tensor

    return method


def _skipping_function(skipping: _Skipping, original: Any) -> Any:
    @wraps(original)
    def function(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not skipping.is_parameter(tensor):
            return original(tensor, *args, **kwargs)
        skipping.skip(tensor)
        return tensor

    return function


def _check_as_torch_would(skipping: _Skipping, original: Any, tensor: Any, args: Any, kwargs: Any) -> None:
    """Raise what the call would raise: wrong arguments, a leaf that needs gradients changed in place."""
    with skipping.torch.no_grad():
        probe = tensor.detach().new_empty(1)
    probe.requires_grad_(tensor.requires_grad)
    original(probe, *args, **kwargs)


def _cheap_apply(skipping: _Skipping, original: Any, patch: Callable[[], Patch]) -> Any:
    target_of = _target_reader(skipping.torch)

    def cheap(fn: Any) -> Any:
        targets: dict[Any, Any] = {}

        def convert(tensor: Any) -> Any:
            if skipping.is_big_cpu_weight(tensor):
                key = tensor.dim(), tensor.dtype
                if key not in targets:
                    targets[key] = target_of(fn, *key)
                result = _cast_cheaply(skipping, tensor, targets[key])
                if result is not None:
                    return fn(result)
            return fn(tensor)

        return convert

    @wraps(original)
    def apply(module: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        # A module passes its children the function it was given, so below the first everything is torch's own: the
        # user's traceback has one frame of ours, not one per level.
        patch().undo()
        try:
            return original(module, cheap(fn), *args, **kwargs)
        finally:
            patch().redo()

    return apply


def _cast_cheaply(skipping: _Skipping, tensor: Any, target: tuple[Any, Any, Any] | None) -> Any | None:
    if target is None:
        return None
    device, dtype, memory_format = target
    if dtype is None or dtype == tensor.dtype or not dtype.is_floating_point:
        return None
    if memory_format is not None and tensor.dim() in (4, 5):
        return None
    # torch casts on the CPU and then copies; only other layouts need a second block on the GPU
    # (`copy_requires_temporaries` in aten/src/ATen/native/cuda/Copy.cu). Leave those to torch, to keep the bytes the
    # same.
    if device is not None and device.type != "cpu" and not tensor.is_contiguous():
        return None
    return skipping.cast(tensor, dtype)


def _target_reader(torch: Any) -> Any:
    """Return a function that reads (device, dtype, memory format) of a conversion without making it: on the GPU even a
    small one would be an allocation of ours. It runs the conversion on a small tensor that records the calls."""
    named = {"half": torch.float16, "float": torch.float32, "double": torch.float64, "bfloat16": torch.bfloat16}
    calls: list[tuple[Any, Any, Any] | None] = []

    class Probe(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name in named:
                calls.append((None, named[name], None))
                return args[0]
            if name == "to":
                device, dtype, _, memory_format = torch._C._nn._parse_to(*args[1:], **(kwargs or {}))
                calls.append((device, dtype, memory_format))
                return args[0]
            if name not in ("is_floating_point", "is_complex", "dim", "__get__"):
                raise _NotAConversion
            return super().__torch_function__(func, types, args, kwargs or {})

    def target_of(fn: Any, num_dimensions: int, dtype: Any) -> tuple[Any, Any, Any] | None:
        calls.clear()
        try:
            probe = torch.empty((1,) * num_dimensions, dtype=dtype, device="cpu").as_subclass(Probe)
            is_conversion = fn(probe) is probe and len(calls) == 1
        except Exception:  # not one of the conversions above
            return None
        return calls[0] if is_conversion else None

    return target_of


class _NotAConversion(Exception):
    pass


def _cheap_deepcopy(skipping: _Skipping, original: Any) -> Any:
    @wraps(original)
    def deepcopy(parameter: Any, memo: dict[int, Any]) -> Any:
        if id(parameter) not in memo and type(parameter) is skipping.torch.nn.Parameter:
            copied = skipping.cast(parameter, parameter.dtype) if skipping.is_big_cpu_weight(parameter) else None
            if copied is not None:
                result = type(parameter)(copied, parameter.requires_grad)
                memo[id(parameter)] = result
                return result
        return original(parameter, memo)

    return deepcopy


def _in_memory_order(torch: Any, tensor: Any) -> Any:
    """The whole storage as one dimension."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
