"""Attention: the CPU computes it in parts (`math`) where it has no fused kernel, as with dropout; a card mostly has
one. Then what the parts made is dropped, and what the fused kernel makes and saves stands in for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from foretell.cpu.analysis import Block, Job, Span
from foretell.cpu.card import Card
from foretell.cpu.kernels import attention_temporaries
from foretell.cpu.profile import Operator, Tensor

Backend = Literal["flash", "efficient", "math"]
_MATH = "aten::_scaled_dot_product_attention_math"
_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
_MASK_ARGUMENT = {_MATH: 3, _FLASH: 5}
_NUM_SIDES = 3
"""Query, key and value."""


def backend(query: Tensor, key: Tensor, value: Tensor, *, has_mask: bool, card: Card) -> Backend:
    """sdp_utils.cpp, in short: flash for half precision without a mask, else efficient where the width is aligned.
    cuDNN's, which newer cards prefer, saves the same as flash."""
    if any(len(tensor.shape) != 4 for tensor in (query, key, value)):
        return "math"
    width, is_half = query.shape[-1], query.element_bytes == 2
    if query.shape[1] != key.shape[1] or width != key.shape[-1]:
        return "math"
    is_ampere = card.gpu.compute_capability >= (8, 0)
    if is_half and is_ampere and not has_mask and width == value.shape[-1] and width <= 256:
        return "flash"
    if query.element == "c10::BFloat16" and not is_ampere:
        return "math"
    aligned = 8 if is_half else 4 if is_ampere else 1
    if query.element_bytes <= 4 and width % aligned == 0 and value.shape[-1] % aligned == 0:
        return "efficient"
    return "math"


def rewrite(job: Job, card: Card) -> tuple[Block, ...]:
    blocks = job.blocks
    for number in _to_fuse(job, card):
        rewrite_one = _fused if job.operators[number].name == _MATH else _fused_elsewhere
        blocks = tuple(rewrite_one(replace(job, blocks=blocks), number, card))
    return blocks


def replaced_operators(job: Job, card: Card) -> set[int]:
    """The parts that a card does not compute one by one, forward and backward."""
    replaced: set[int] = set()
    for number in _to_fuse(job, card):
        operator = job.operators[number]
        if operator.name == _MATH:
            backward = job.backward_of(number)
            replaced |= {*job.parts(number), *(job.numbers(backward) if backward is not None else ())}
    return replaced


def num_only_fused_here(job: Job, card: Card) -> int:
    """Those that the card computes in parts and the CPU did not: what the parts take is not known from the profile."""
    fused = set(_to_fuse(job, card))
    return sum(operator.name == _FLASH and number not in fused for number, operator in enumerate(job.operators))


def _to_fuse(job: Job, card: Card) -> Iterator[int]:
    for number, operator in enumerate(job.operators):
        if operator.name in (_MATH, _FLASH) and len(operator.tensors) >= _NUM_SIDES:
            query, key, value = operator.tensors[:3]
            at = _MASK_ARGUMENT[operator.name]
            has_mask = len(operator.inputs) > at and operator.inputs[at] is not None
            if backend(query, key, value, has_mask=has_mask, card=card) != "math":
                yield number


def _fused(job: Job, number: int, card: Card) -> Iterator[Block]:
    operator = job.operators[number]
    query, key, value = operator.tensors[:3]
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
            yield replace(block, born=forward.end - 0.5, died=died)
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
    yield Block(
        num_bytes=_log_sum_exp_bytes(query),
        born=forward.end - 0.4,
        died=saved_until,
        operator=number,
        category="activation",
    )
    for num_bytes in attention_temporaries(query, key, value, card):
        yield Block(num_bytes=num_bytes, born=backward.end - 0.5, died=backward.end - 0.4, operator=number)


def _fused_elsewhere(job: Job, number: int, card: Card) -> Iterator[Block]:
    """The CPU has a fused kernel as well: only what it saves has another size, and what it returns another order."""
    operator = job.operators[number]
    query, _, value = operator.tensors[:3]
    batch, heads, length, width = query.shape
    node = job.nodes.get(number)
    out, copy = _output(job, operator, query.num_bytes // width * value.shape[-1])
    for block in job.blocks:
        is_saved = operator.begin < block.born < operator.end < block.died
        if is_saved and block.num_bytes == 4 * batch * heads * length:
            block = replace(block, num_bytes=_log_sum_exp_bytes(query))
        yield block
    if out is not None and copy is None and _needs_copy(job, operator):
        died = out.died if node is None else node.begin
        yield replace(out, born=operator.end + 0.5, died=died)


def _log_sum_exp_bytes(query: Tensor) -> int:
    batch, heads, length, _ = query.shape
    return 4 * batch * heads * (length if query.element_bytes == 2 else -(-length // 32) * 32)


def _needs_copy(job: Job, operator: Operator) -> bool:
    """Fused kernels of a card return (batch, length, heads, width) in memory: what transposes it to that needs no copy,
    what permutes it otherwise does (torch.nn.MultiheadAttention)."""
    after = bisect_left(job.operators, operator.end, key=lambda o: o.begin)
    following = next((o for o in job.operators[after:] if not o.is_annotation), None)
    return following is not None and following.name == "aten::permute"


def _output(job: Job, operator: Operator, num_bytes: int) -> tuple[Block | None, Block | None]:
    """The last result of that size; and its copy, which a fused kernel's order of elements saves the model."""
    same = [block for block in job.blocks if block.num_bytes == num_bytes]
    made = [b for b in same if operator.begin < b.born < operator.end < b.died]
    after = next((b for b in job.blocks if b.born > operator.end), None)
    is_copy = (
        after is not None
        and after.num_bytes == num_bytes
        and job.within(after.operator, "aten::contiguous", "aten::reshape", "aten::clone") is not None
    )
    return (made[-1] if made else None), (after if is_copy else None)


def _sides(job: Job, operator: Operator, num_bytes: int) -> list[Block]:
    """The blocks that hold query, key and value: the newest of their size, or of all three together."""
    sides: list[Block] = []
    num_held = 0
    for block in sorted(job.blocks, key=lambda block: -block.born):
        if block.born < operator.begin < block.died and block.num_bytes in (num_bytes, _NUM_SIDES * num_bytes):
            sides.append(block)
            num_held += block.num_bytes // num_bytes
            if num_held >= _NUM_SIDES:
                break
    return sides
