"""Operators on lists of tensors, as optimizers use them: one kernel for all, without extra memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....versions import CHUNKS_OF_EACH_NORM
from .registration import Tensor, aten, overloads, torch

if TYPE_CHECKING:
    from ..device import PythonCuda

_CHUNK = 65536
_PREFIXES = tuple(f"aten::{name}" for name in ("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach"))


def register_lists(device: PythonCuda) -> None:
    """Register all list operators of this version of torch; they are too many to name. As functions they forget what
    they write, except for the check that gradients are finite; if all values are kept, they are kernels."""
    table = device.dispatch.table("kernel" if device.values.keeps_all else "function")
    for operator in _operators():
        table[operator] = partial(_function_of(operator), device)
    table[aten._amp_update_scale_.default] = lambda scale, *args: scale


def _operators() -> Iterator[Any]:
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(_PREFIXES):
            yield from overloads(name.removeprefix("aten::"))


def _function_of(operator: Any) -> Callable[..., Any]:
    name = operator._schema.name
    if name == "aten::_foreach_norm":
        return norm
    if name == "aten::_foreach_max":
        return largest
    if operator._schema.returns:
        return results_like_inputs
    written = [
        number
        for number, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if name == "aten::_amp_foreach_non_finite_check_and_unscale_":
        written = written[:1]  # found_inf keeps its value
    return partial(in_place, written)


def norm(device: PythonCuda, tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    if not tensors:
        return []
    kind = kwargs.get("dtype") or tensors[0].dtype
    wide = torch.float32 if kind in (torch.float16, torch.bfloat16) else kind
    chunks = [max(1, -(-each.numel() // _CHUNK)) for each in tensors]
    num_partial = sum(chunks) if CHUNKS_OF_EACH_NORM.holds_in(device.version) else len(tensors) * max(chunks)
    where = tensors[0].device
    with device.rule("partial sums"):
        partial_sums = torch.empty(num_partial, dtype=wide, device=where)
    results = [torch.empty((), dtype=kind, device=where) for _ in tensors]
    del partial_sums
    return results


def largest(device: PythonCuda, tensors: Sequence[Tensor], *args: Any) -> list[Tensor]:
    return [torch.empty((), dtype=each.dtype, device=each.device) for each in tensors]


def results_like_inputs(device: PythonCuda, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Results like the first list of tensors; a number may precede it."""
    tensors = next(each for each in args if isinstance(each, (list, tuple)))
    return [torch.empty_like(each) for each in tensors]


def in_place(written: Sequence[int], device: PythonCuda, *args: Any, **kwargs: Any) -> None:
    """`written`: positions of the lists whose tensors change."""
    if not device.memory.host or device.values.keeps_all:
        return
    for position in written:
        for each in args[position] if position < len(args) else ():
            device.values.forget(each)
