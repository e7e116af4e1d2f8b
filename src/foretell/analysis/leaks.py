"""Finds leaks: blocks that every step allocates and no later step frees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median_low

from foretell.records import Block, Blocks, Category, Leak

_FEWEST_STEPS = 3
"""Consecutive steps that must leave memory behind: the last one always does, and two may be chance."""
_SIMILAR = 2
"""Batches differ in length: up to twice the size still counts as the same leak."""
_MADE_TO_STAY: tuple[Category, ...] = ("parameter", "buffer", "optimizer_state", "workspace")


def find_leaks(blocks: Sequence[Block], num_steps: int) -> tuple[Leak, ...]:
    """Largest first. Memory that is freed after training still leaked during it."""
    columns = Blocks.of(blocks)
    begin, end, step, kind = columns.begin, columns.end, columns.step, columns.kind
    end_of_training = max((event for event, of in zip(begin, step, strict=True) if of < num_steps), default=0)
    may_leak = [each.category not in _MADE_TO_STAY for each in columns.kinds]
    groups: defaultdict[tuple[str | None, str | None, str | None], list[int]] = defaultdict(list)
    for number, until in enumerate(end):
        if (until < 0 or until > end_of_training) and step[number] < num_steps and may_leak[kind[number]]:
            made = columns.kinds[kind[number]]
            groups[made.where, made.module, made.operator].append(number)
    leaks = [
        Leak(
            where=where,
            module=module,
            bytes_per_step=median_low(each[-_FEWEST_STEPS:]),
            held_bytes=sum(columns.bytes[number] for number in group),
            num_blocks=len(group),
        )
        for (where, module, _), group in groups.items()
        if _grows(each := _bytes_of_steps(columns, group, num_steps))
    ]
    return tuple(sorted(leaks, key=lambda leak: leak.held_bytes, reverse=True))


def _bytes_of_steps(blocks: Blocks, group: Sequence[int], num_steps: int) -> list[int]:
    made = [0] * num_steps
    for number in group:
        made[blocks.step[number]] += blocks.bytes[number]
    return made


def _grows(made: list[int]) -> bool:
    last = made[-_FEWEST_STEPS:]
    return len(last) == _FEWEST_STEPS and 0 < max(last) <= _SIMILAR * min(last)
