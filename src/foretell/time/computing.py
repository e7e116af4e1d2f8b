"""Which operators have kernels, where no launches are recorded: the CPU engine computes shapes in their place."""

from __future__ import annotations

from collections.abc import Set

from foretell.time.linking import ancestors
from foretell.time.rules import COMPOSITE, parse
from foretell.trace import Operators, Trace

TRANSPARENT = frozenset(
    {"t", "transpose", "view", "reshape", "as_strided", "empty", "empty_like", "empty_strided", "resize_", "detach",
     "select", "slice", "expand", "permute", "unsqueeze", "squeeze"}
)  # fmt: skip
"""No kernel of their own: a record that seems to lie in one belongs to its caller."""
_IDLE = TRANSPARENT | {
    "_pad_packed_sequence", "_reshape_alias", "_unsafe_view", "alias", "broadcast_tensors", "broadcast_to", "chunk",
    "contiguous", "detach_", "diagonal", "dropout", "expand_as", "feature_dropout", "flatten", "is_same_size",
    "lift_fresh", "linear", "movedim", "narrow", "record_stream", "requires_grad_", "reshape_as", "resolve_conj",
    "resolve_neg", "result_type", "retain_grad", "set_", "split", "split_with_sizes", "squeeze_", "swapaxes",
    "swapdims", "t_", "tensor_split", "to", "transpose_", "type_as", "unbind", "unflatten", "unfold", "unsqueeze_",
    "view_as", "view_as_complex", "view_as_real",
}  # fmt: skip
"""Operators that have no kernel, unless they call another one."""
_OPERATORS = ('["aten::', '["torchvision::', '["foretell::')
"""How the signatures of operators begin that may have a kernel. Nodes of autograd, which have tensors too, only call
operators."""


def computing_operators(trace: Trace) -> frozenset[int]:
    """Rows of operators on the GPU that call no others there, or whose rule says what these do together. Each stands
    for its kernels."""
    operators = trace.operators
    calls = [parse(signature) for signature in trace.signatures]
    can_compute = [
        signature.startswith(_OPERATORS) and bool(call.on_gpu) and call.name not in _IDLE
        for signature, call in zip(trace.signatures, calls, strict=True)
    ]
    composite = {row for row, number in enumerate(operators.signature) if calls[number].name in COMPOSITE}
    inner = called_by(operators, composite)
    rows = {row for row, number in enumerate(operators.signature) if can_compute[number] and row not in inner}
    outer = {caller for row in rows for caller in ancestors(operators, operators.parent[row])}
    return frozenset(rows - outer)


def called_by(operators: Operators, rows: Set[int]) -> Set[int]:
    """What these rows call, directly or not: it comes after them."""
    found: set[int] = set()
    for row, parent in enumerate(operators.parent):
        if parent in rows or parent in found:
            found.add(row)
    return found
