"""Turns the blocks of a run into leaks: what each step makes and no later step lets go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median_low

from foretell.records import Block, Category, Leak

_FEWEST_STEPS = 3
"""That in a row must have left something behind: one does that always (the last), two may be chance."""
_SIMILAR = 2
"""Batches of several lengths leave more and less; twice as much is still the same habit."""
_MADE_TO_STAY: tuple[Category, ...] = ("parameter", "buffer", "optimizer_state", "workspace")


def find_leaks(blocks: Sequence[Block], num_steps: int) -> tuple[Leak, ...]:
    """The largest first. What is let go after the training still grew during it."""
    end_of_training = max((block.begin for block in blocks if block.step < num_steps), default=0)
    groups: defaultdict[tuple[str | None, str | None, str | None], list[Block]] = defaultdict(list)
    for block in blocks:
        is_held = block.end is None or block.end > end_of_training
        if is_held and block.step < num_steps and block.category not in _MADE_TO_STAY:
            groups[block.where, block.module, block.operator].append(block)
    leaks = [
        Leak(
            where=where,
            module=module,
            bytes_per_step=median_low(each[-_FEWEST_STEPS:]),
            held_bytes=sum(block.bytes for block in group),
            num_blocks=len(group),
        )
        for (where, module, _), group in groups.items()
        if _grows(each := _bytes_of_steps(group, num_steps))
    ]
    return tuple(sorted(leaks, key=lambda leak: leak.held_bytes, reverse=True))


def _bytes_of_steps(blocks: Sequence[Block], num_steps: int) -> list[int]:
    made = [0] * num_steps
    for block in blocks:
        made[block.step] += block.bytes
    return made


def _grows(made: list[int]) -> bool:
    last = made[-_FEWEST_STEPS:]
    return len(last) == _FEWEST_STEPS and 0 < max(last) <= _SIMILAR * min(last)
