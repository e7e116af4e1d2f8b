"""Attention. The CPU computes it in parts (`math`) where it has no fused kernel, as with dropout; a card mostly has
one. The blocks of the parts are then replaced by those the fused kernel makes and saves."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from foretell.engines.imported.analysis import JobBlock, RecordedJob, Span
from foretell.engines.imported.card import Card
from foretell.engines.imported.cpu_profile import Operator
from foretell.engines.imported.moments import AtBegin, AtEnd, after, before
from foretell.rules.attention import (
    Attention,
    Backend,
    Choice,
    Operand,
    Platform,
    choose,
    efficient_sums,
    flash_sums,
    log_sum_exp_bytes,
)

_MATH = "aten::_scaled_dot_product_attention_math"
_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
_FLASH_BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
_NUM_SIDES = 3
"""Query, key and value."""


class _Arguments(NamedTuple):
    """Positions of the arguments."""

    query: int
    mask: int
    dropout: int
    is_causal: int
    enables_gqa: int | None = None


_ARGUMENTS = {
    _MATH: _Arguments(query=0, mask=3, dropout=4, is_causal=5, enables_gqa=8),
    _FLASH: _Arguments(query=0, mask=5, dropout=3, is_causal=4),
    _FLASH_BACKWARD: _Arguments(query=1, mask=8, dropout=6, is_causal=7),
}


def attention_of(operator: Operator, *, needs_grad: bool) -> Attention | None:
    """The attention an operator computes; None for other operators, or if shapes were not recorded."""
    at = _ARGUMENTS.get(operator.name)
    if at is None or len(operator.tensors) < at.query + _NUM_SIDES:
        return None
    query, key, value = (
        Operand(shape=each.shape, dtype=each.dtype, last_stride=each.strides[-1] if each.strides else 1)
        for each in operator.tensors[at.query :][:_NUM_SIDES]
    )
    has_other_heads = len(query.shape) == len(key.shape) == 4 and query.heads != key.heads
    dropout = _value(operator, at.dropout)
    return Attention(
        query=query,
        key=key,
        value=value,
        has_mask=len(operator.inputs) > at.mask and operator.inputs[at.mask] is not None,
        dropout=float(dropout) if dropout else 0.0,
        is_causal=_value(operator, at.is_causal) == "True",
        # The CPU's fused kernel has no such argument; only grouped-query attention gives it different numbers of heads.
        enables_gqa=has_other_heads if at.enables_gqa is None else _value(operator, at.enables_gqa) == "True",
        needs_grad=needs_grad,
    )


def _value(operator: Operator, at: int) -> str:
    return operator.values[at] if len(operator.values) > at else ""


def choice_of(attention: Attention, card: Card) -> Choice:
    return choose(attention, Platform(compute_capability=card.gpu.compute_capability, torch_version=card.torch))


def choices(job: RecordedJob, card: Card) -> Iterator[tuple[int, Attention, Choice]]:
    """The backend a card chooses for each forward attention operator."""
    for number, operator in enumerate(job.operators):
        if operator.name in (_MATH, _FLASH):
            attention = attention_of(operator, needs_grad=job.backward_of(number) is not None)
            if attention is not None:
                yield number, attention, choice_of(attention, card)


def explained(job: RecordedJob, card: Card) -> str:
    """`12 by efficient (not flash: not in half precision)`; empty without attention."""
    counts = Counter((choice.backend, choice.why_not_flash) for _, _, choice in choices(job, card))
    return ", ".join(f"{count} by {backend}" + (f" ({why})" if why else "") for (backend, why), count in counts.items())


def backward_temporaries(operator: Operator, card: Card) -> tuple[int, ...]:
    """Temporaries of the card's kernel in place of the CPU's fused one; none if the card computes in parts, which a
    caveat counts."""
    attention = attention_of(operator, needs_grad=True)
    return () if attention is None else _temporaries(attention, choice_of(attention, card).backend)


def _temporaries(attention: Attention, backend: Backend) -> tuple[int, ...]:
    query, key, value = attention.operands
    if backend == "flash":
        return flash_sums(query.shape, key.shape, element_bytes=2)
    if backend == "efficient":
        sums = efficient_sums(query.shape, value.shape, query.dtype)
        return sums.delta, max(sums.product, sums.workspace)  # one after the other
    return ()  # cuDNN's sizes are unknown


def rewrite(job: RecordedJob, card: Card) -> tuple[JobBlock, ...]:
    blocks = job.blocks
    for number, attention, choice in choices(job, card):
        if choice.backend != "math":
            rewrite_one = _fused if job.operators[number].name == _MATH else _fused_elsewhere
            blocks = tuple(rewrite_one(replace(job, blocks=blocks), number, attention, choice.backend))
    return blocks


def replaced_operators(job: RecordedJob, card: Card) -> set[int]:
    """Operators that a card fuses into one kernel, forward and backward."""
    replaced: set[int] = set()
    for number, _, choice in choices(job, card):
        if job.operators[number].name == _MATH and choice.backend != "math":
            backward = job.backward_of(number)
            replaced |= {*job.parts(number), *(job.numbers(backward) if backward is not None else ())}
    return replaced


def num_only_fused_here(job: RecordedJob, card: Card) -> int:
    """How many attentions only the CPU fused. The memory of their parts on the card is unknown: the profile has
    none."""
    return sum(
        job.operators[number].name == _FLASH and choice.backend == "math" for number, _, choice in choices(job, card)
    )


def _fused(job: RecordedJob, number: int, attention: Attention, backend: Backend) -> Iterator[JobBlock]:
    operator = job.operators[number]
    query, _, value = operator.tensors[:3]
    forward = Span(begin=operator.begin, end=operator.end)
    backward = job.backward_of(number)
    saved_until = operator.end if backward is None else backward.end
    out_bytes = query.num_bytes // query.shape[-1] * value.shape[-1]
    out, copy = _output(job, operator, out_bytes)
    if _needs_copy(job, operator):
        copy = None
    sides = _sides(job, operator, query.num_bytes)
    for block in job.blocks:
        if block is out:
            died = max(block.died if copy is None else copy.died, saved_until)
            yield replace(block, born=before(forward.end, AtEnd.TAKEN), died=died)
        elif block in sides:
            yield replace(block, died=max(block.died, saved_until))
        elif block is copy or forward.holds(block.born):
            continue
        elif backward is not None and backward.holds(block.born):
            if block.died > backward.end:  # the gradients of query, key and value
                yield block
        else:
            yield block
    if backward is None:
        return
    yield JobBlock(
        num_bytes=log_sum_exp_bytes(backend, query.shape),
        born=before(forward.end, AtEnd.SAVED),
        died=saved_until,
        operator=number,
        category="activation",
    )
    for num_bytes in _temporaries(attention, backend):
        yield JobBlock(
            num_bytes=num_bytes,
            born=before(backward.end, AtEnd.TAKEN),
            died=before(backward.end, AtEnd.WORKSPACE_GIVEN_BACK),
            operator=number,
        )


def _fused_elsewhere(job: RecordedJob, number: int, attention: Attention, backend: Backend) -> Iterator[JobBlock]:
    """If the CPU fuses too: only the size of what it saves and the memory order of its result differ."""
    operator = job.operators[number]
    query, _, value = operator.tensors[:3]
    batch, heads, length, width = query.shape
    node = job.nodes.get(number)
    out, copy = _output(job, operator, query.num_bytes // width * value.shape[-1])
    for block in job.blocks:
        is_saved = operator.begin < block.born < operator.end < block.died
        if is_saved and block.num_bytes == 4 * batch * heads * length:
            block = replace(block, num_bytes=log_sum_exp_bytes(backend, query.shape))
        yield block
    if out is not None and copy is None and _needs_copy(job, operator):
        died = out.died if node is None else node.begin
        yield replace(out, born=after(operator.end, AtBegin.COPIED), died=died)


def _needs_copy(job: RecordedJob, operator: Operator) -> bool:
    """Whether the result is copied. A card's fused kernels return (batch, length, heads, width) in memory: a transpose
    to that order needs no copy, any other permutation does (torch.nn.MultiheadAttention)."""
    after = bisect_left(job.operators, operator.end, key=lambda o: o.begin)
    following = next((o for o in job.operators[after:] if not o.is_annotation), None)
    return following is not None and following.name == "aten::permute"


def _output(job: RecordedJob, operator: Operator, num_bytes: int) -> tuple[JobBlock | None, JobBlock | None]:
    """The last result of that size, and the copy of it that the memory order of a fused kernel makes unnecessary."""
    same = [block for block in job.blocks if block.num_bytes == num_bytes]
    made = [b for b in same if operator.begin < b.born < operator.end < b.died]
    after = next((b for b in job.blocks if b.born > operator.end), None)
    is_copy = (
        after is not None
        and after.num_bytes == num_bytes
        and job.within(after.operator, "aten::contiguous", "aten::reshape", "aten::clone") is not None
    )
    return (made[-1] if made else None), (after if is_copy else None)


def _sides(job: RecordedJob, operator: Operator, num_bytes: int) -> list[JobBlock]:
    """The blocks of query, key and value: the newest of that size, or of all three together."""
    sides: list[JobBlock] = []
    num_held = 0
    for block in sorted(job.blocks, key=lambda block: block.born, reverse=True):
        if block.born < operator.begin < block.died and block.num_bytes in (num_bytes, _NUM_SIDES * num_bytes):
            sides.append(block)
            num_held += block.num_bytes // num_bytes
            if num_held >= _NUM_SIDES:
                break
    return sides
