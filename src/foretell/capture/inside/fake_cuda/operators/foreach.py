"""Operators on lists of tensors, as optimizers use them: one kernel for all, whose only memory is the results."""

from __future__ import annotations

from typing import Any

_CHUNK = 65536


_PREFIXES = tuple(f"aten::{name}" for name in ("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach"))


def add(device: Any) -> None:
    torch = device.torch
    aten = torch.ops.aten
    # Functions: what they write is forgotten, but for what says that training goes well. With all values: kernels.
    table = device.kernels if device.values.keeps_all else device.functions
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(_PREFIXES):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operator = getattr(getattr(aten, packet), overload or "default")
            table[operator] = _kernel(device, operator)
    table[aten._amp_update_scale_.default] = lambda scale, *args: scale


def _kernel(device: Any, operator: Any) -> Any:
    torch, values = device.torch, device.values
    name = operator._schema.name
    if name.endswith("_foreach_norm"):
        return lambda tensors, *args, **kwargs: _norm(device, tensors, kwargs.get("dtype"))
    if name.endswith("_foreach_max"):
        return lambda tensors, *args: [torch.empty((), dtype=each.dtype, device=each.device) for each in tensors]
    if operator._schema.returns:
        return lambda *args, **kwargs: [torch.empty_like(each) for each in _first_list(args)]
    is_check = name.endswith("_amp_foreach_non_finite_check_and_unscale_")
    positions = [
        number
        for number, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    host = device.memory.host

    def in_place(*args: Any, **kwargs: Any) -> None:
        if not host or values.keeps_all:
            return
        for position in positions[:1] if is_check else positions:  # found_inf stays as it was
            for each in args[position] if position < len(args) else ():
                values.forget(each)

    return in_place


def _first_list(args: Any) -> Any:
    """Of tensors; a number may stand before it."""
    return next(each for each in args if isinstance(each, (list, tuple)))


def _norm(device: Any, tensors: Any, dtype: Any) -> Any:
    torch = device.torch
    if not tensors:
        return []
    kind = dtype or tensors[0].dtype
    wide = torch.float32 if kind in (torch.float16, torch.bfloat16) else kind
    chunks = [max(1, -(-each.numel() // _CHUNK)) for each in tensors]
    # Before 2.15 as many for each tensor as the largest has.
    num_partial = sum(chunks) if device.version >= (2, 15) else len(tensors) * max(chunks)
    where = tensors[0].device
    with device.rule("partial sums"):
        partial = torch.empty(num_partial, dtype=wide, device=where)
    results = [torch.empty((), dtype=kind, device=where) for _ in tensors]
    del partial
    return results
