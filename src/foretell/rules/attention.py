"""Which kernel PyTorch chooses for scaled_dot_product_attention on a card, why it rejects the others, and which extra
memory the chosen one uses and saves. Standard library only.

As in sdp_utils.cpp: each fused kernel has a list of constraints, and the first kernel that meets all of its own is
chosen (read from torch 2.6 and 2.15). The text of a constraint says why the kernel is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

from ..versions import GROUPED_EFFICIENT_ATTENTION, Version

Backend = Literal["cudnn", "flash", "efficient", "math"]
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """Query, key or value: (batch, heads, length, width)."""

    shape: tuple[int, ...]
    dtype: str
    """`float16`"""
    last_stride: int = 1

    @property
    def heads(self) -> int:
        return self.shape[1]

    @property
    def length(self) -> int:
        return self.shape[2]

    @property
    def width(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One call of scaled_dot_product_attention."""

    query: Operand
    key: Operand
    value: Operand
    has_mask: bool = False
    dropout: float = 0.0
    is_causal: bool = False
    enables_gqa: bool = False
    needs_grad: bool = True

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        return self.query, self.key, self.value

    @property
    def is_half(self) -> bool:
        return self.query.dtype in _HALF


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The card, the torch version and its settings."""

    compute_capability: tuple[int, int]
    torch_version: Version
    enabled: frozenset[Backend] = frozenset(("cudnn", "flash", "efficient", "math"))
    """Set by torch.backends.cuda.enable_flash_sdp and the like."""
    prefers_cudnn: bool = True
    """On Hopper and B200, unless TORCH_CUDNN_SDPA_DEPRIORITIZED is set."""

    @property
    def is_ampere(self) -> bool:
        return self.compute_capability >= (8, 0)

    @property
    def alignment(self) -> dict[bool, int]:
        """Required alignment of the width for memory-efficient attention, in elements, by "is half precision"."""
        if self.is_ampere:
            return {True: 8, False: 4}
        return {True: 8 if self.compute_capability >= (7, 0) else 1, False: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    backend: Backend
    why_not: dict[Backend, str] = field(default_factory=dict)
    """For each fused kernel that cannot be used: the first constraint it does not meet."""

    @property
    def why_not_flash(self) -> str | None:
        """`not flash: not in half precision`, for `--explain`."""
        why = self.why_not.get("flash")
        return None if why is None else f"not flash: {why}"


def choose(attention: Attention, platform: Platform) -> Choice:
    """sdp::select_sdp_backend."""
    why_not = {backend: why for backend in CONSTRAINTS if (why := unmet(backend, attention, platform)) is not None}
    return Choice(backend=_first_allowed(why_not, platform), why_not=why_not)


def _first_allowed(why_not: dict[Backend, str], platform: Platform) -> Backend:
    is_cudnn_first = platform.compute_capability[0] in (9, 10) and platform.prefers_cudnn
    if is_cudnn_first and "cudnn" not in why_not:
        return "cudnn"
    if "flash" not in why_not:
        return "flash"
    if "efficient" not in why_not:
        return "efficient"
    return "cudnn" if "cudnn" not in why_not and "math" not in platform.enabled else "math"


def unmet(backend: Backend, attention: Attention, platform: Platform) -> str | None:
    """Why this kernel cannot be used; None: it can."""
    if backend not in platform.enabled:
        return "switched off"
    constraints = (*_OF_ALL, *CONSTRAINTS[backend])
    return next((each.why_not for each in constraints if not each.is_met(attention, platform)), None)


class Constraint(NamedTuple):
    why_not: str
    is_met: Callable[[Attention, Platform], bool]


def _has_alike_heads(attention: Attention, platform: Platform) -> bool:
    return attention.query.heads == attention.key.heads == attention.value.heads


def _has_heads_or_groups(attention: Attention, platform: Platform) -> bool:
    query, key, value = attention.operands
    has_groups = attention.enables_gqa and query.heads % key.heads == 0 and key.heads == value.heads
    return _has_alike_heads(attention, platform) or has_groups


def _has_efficient_heads(attention: Attention, platform: Platform) -> bool:
    takes_groups = GROUPED_EFFICIENT_ATTENTION.holds_in(platform.torch_version)
    return (_has_heads_or_groups if takes_groups else _has_alike_heads)(attention, platform)


def _has_rows(attention: Attention, platform: Platform) -> bool:
    return all(each.last_stride == 1 or each.width == 1 for each in attention.operands)


def _is_narrow_for_a_gradient(attention: Attention, platform: Platform) -> bool:
    """check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120: too little shared memory there."""
    has_little = platform.compute_capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    width = attention.query.width
    return not (has_little and attention.needs_grad) or width <= 192 or (attention.dropout == 0 and width > 224)


def _has_aligned_widths(attention: Attention, platform: Platform) -> bool:
    alignment = platform.alignment[attention.is_half]
    return attention.query.width % alignment == 0 and attention.value.width % alignment == 0


_OF_ALL = (
    Constraint("not four dimensions", lambda a, _: all(len(each.shape) == 4 for each in a.operands)),
    Constraint("an empty sequence", lambda a, _: 0 not in (a.query.length, a.key.length)),
)
_SAME_TYPES = Constraint("operands of several types", lambda a, _: len({each.dtype for each in a.operands}) == 1)
_SAME_BATCH = Constraint("batches of several sizes", lambda a, _: len({each.shape[0] for each in a.operands}) == 1)
_AMPERE = Constraint("a card before Ampere", lambda _, p: p.is_ampere)
_HALF_PRECISION = Constraint("not in half precision", lambda a, _: a.is_half)
_HEADS = Constraint("other numbers of heads without enable_gqa", _has_heads_or_groups)
_ROWS = Constraint("rows that are not contiguous", _has_rows)

CONSTRAINTS: dict[Backend, tuple[Constraint, ...]] = {
    "flash": (
        Constraint("a mask", lambda a, _: not a.has_mask),
        Constraint("widths that differ", lambda a, _: len({each.width for each in a.operands}) == 1),
        Constraint("heads wider than 256", lambda a, _: a.query.width <= 256),
        _AMPERE,
        _HALF_PRECISION,
        _SAME_TYPES,
        _ROWS,
        _HEADS,
        _SAME_BATCH,
        Constraint(
            "causal, with queries and keys of different lengths",
            lambda a, _: not a.is_causal or a.query.length == a.key.length,
        ),
        Constraint("heads too wide for a gradient on this card", _is_narrow_for_a_gradient),
    ),
    "efficient": (
        Constraint("widths that differ", lambda a, _: a.query.width == a.key.width),
        Constraint("a width that is not aligned", _has_aligned_widths),
        Constraint("neither single nor half precision", lambda a, _: a.is_half or a.query.dtype == "float32"),
        Constraint("bfloat16 on a card before Ampere", lambda a, p: a.query.dtype != "bfloat16" or p.is_ampere),
        _SAME_TYPES,
        Constraint("rows that are not contiguous", lambda a, _: all(each.last_stride == 1 for each in a.operands)),
        Constraint("other numbers of heads", _has_efficient_heads),
        _SAME_BATCH,
    ),
    "cudnn": (
        _HALF_PRECISION,
        _SAME_TYPES,
        _AMPERE,
        Constraint("heads wider than 128", lambda a, _: max(a.query.width, a.value.width) <= 128),
        Constraint("a width that is not aligned", lambda a, _: a.query.width % 8 == a.value.width % 8 == 0),
        _ROWS,
        _HEADS,
        _SAME_BATCH,
        Constraint("a single key", lambda a, _: a.key.length != 1),
        Constraint("a dropout that is no sixteenth", lambda a, _: float(a.dropout * 16).is_integer()),
    ),
}
"""In the order in which they are checked."""


# --- what the kernels take --------------------------------------------------------------------------------------------


def log_sum_exp_bytes(backend: Backend, query: tuple[int, ...]) -> int:
    """The log-sum-exp saved for the backward pass, in single precision; memory-efficient attention pads rows to 32."""
    batch, heads, length, _ = query
    return 4 * batch * heads * (_up(length, 32) if backend == "efficient" else length)


def flash_sums(query: tuple[int, ...], key: tuple[int, ...], element_bytes: int) -> tuple[int, ...]:
    """mha_bwd of flash-attention, in bytes: sums in single precision and, with grouped queries, expanded gradients of
    keys and values. All are held at once."""
    batch, heads, length, width = query
    rows, columns = _up(length, 128), _up(width, 32) if width <= 192 else 256
    sums = (batch * heads * rows * 4, batch * rows * heads * columns * 4)
    grouped = element_bytes * batch * key[2] * heads * width
    return sums if key[1] == heads else (*sums, grouped, grouped)


class EfficientSums(NamedTuple):
    """In bytes. `product`, for single precision only, is freed before `workspace` is allocated."""

    delta: int
    product: int
    workspace: int


def efficient_sums(query: tuple[int, ...], value: tuple[int, ...], dtype: str) -> EfficientSums:
    """attention_backward.cu."""
    batch, heads, length, width = query
    wide = max(width, value[-1]) > 64
    rows, columns = (128, 128) if dtype in _HALF and wide else (128, 64) if wide else (64, 64)
    sums = -(-length // rows) * -(-width // columns) * (16 + rows * columns * 4)
    return EfficientSums(
        delta=4 * prod((batch, heads, length)),
        product=4 * batch * length * heads * value[-1] if dtype == "float32" else 0,
        workspace=batch * heads * _up(sums, 16),
    )


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
