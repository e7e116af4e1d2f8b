"""Tensors of the last step that variables keep alive during the next one: `outputs`, `logits`, `loss`.

Python frees them when the name is reassigned, which is after the next forward. The recorded requests are replayed with
those blocks freed at the end of their step: no run, but exact with regard to the allocator.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from foretell.allocator import CachingAllocator, Device
from foretell.allocator.play import play_again
from foretell.records import Advice, Attribution, Block, Blocks
from foretell.trace import ACTIONS, MemoryEvents, Trace

_ALLOC, _FREES = ACTIONS.index("alloc"), tuple(map(ACTIONS.index, ("free_requested", "free_completed")))


def release_earlier(trace: Trace, attribution: Attribution) -> Advice | None:
    """The advice to free them earlier; None if nothing is held this way, or the history cannot be replayed."""
    device = attribution.device
    held = held_into_next_forward(attribution)
    if not held or not trace.allocator.is_native:
        return None
    ends = {step: begin for begin, step in reversed([(span.begin, span.step - 1) for span in attribution.spans])}
    earlier = freed_at(trace.memory, {block.begin: ends[block.step] for block in held}, device=device)

    def peak(events: MemoryEvents) -> int:
        allocator = CachingAllocator(Device(total_bytes=trace.gpu.total_bytes), trace.allocator)
        return play_again(events, allocator, device=device).peak_reserved_bytes

    recorded = peak(trace.memory)
    if recorded != max((each.peak_reserved_bytes for each in trace.final if each.device == device), default=0):
        return None
    (lines, most) = _lines(held)
    return Advice(
        title=f"release the last step's outputs before the next forward pass ({most})",
        how=f"at the end of each step, del the results of {lines}, or move the step into a function",
        saved_bytes=recorded - (reserved := peak(earlier)),
        peak_reserved_bytes=reserved,
        basis="estimated",
        price="none",
    )


def held_into_next_forward(attribution: Attribution) -> list[Block]:
    """Blocks allocated in the forward of one step and freed in the forward of a later one."""
    begins = [span.begin for span in attribution.spans]
    blocks = Blocks.of(attribution.blocks)
    may_be = [kind.phase == "forward" and kind.category not in ("parameter", "buffer") for kind in blocks.kinds]
    held = []
    for number, (kind, end) in enumerate(zip(blocks.kind, blocks.end, strict=True)):
        if end < 0 or not may_be[kind]:
            continue
        freed_in = attribution.spans[bisect_right(begins, end) - 1]
        if freed_in.phase == "forward" and freed_in.step > blocks.step[number]:
            held.append(blocks[number])
    return held


def freed_at(events: MemoryEvents, moves: dict[int, int], *, device: int) -> MemoryEvents:
    """The events with the frees of some blocks (by the number of their allocation) moved before another event. Both are
    event numbers of the device."""
    rows = [row for row, on in enumerate(events.device) if on == device]
    moved: dict[int, list[int]] = {}
    taken: set[int] = set()
    for allocation, target in moves.items():
        frees = _frees_of(events, rows, allocation)
        moved.setdefault(rows[target], []).extend(frees)
        taken.update(frees)
    order: list[int] = []
    for row in range(len(events.action)):
        order += moved.get(row, ())
        if row not in taken:
            order.append(row)
    columns = {field.name: getattr(events, field.name) for field in fields(events)}
    return MemoryEvents(**{name: type(c)(c.typecode, (c[row] for row in order)) for name, c in columns.items()})


def _frees_of(events: MemoryEvents, rows: Sequence[int], allocation: int) -> list[int]:
    address = events.address[rows[allocation]]
    frees = []
    for row in rows[allocation + 1 :]:
        if events.address[row] == address:
            if events.action[row] == _ALLOC:
                break
            if events.action[row] in _FREES:
                frees.append(row)
    return frees


def _lines(held: Sequence[Block]) -> tuple[str, str]:
    """The lines that allocated them, and the one that allocated the most."""
    sizes: Counter[str] = Counter()
    for block in held:
        sizes[_short(block.where or block.module or "the forward")] += block.bytes
    largest = [line for line, _ in sizes.most_common(3)]
    return ", ".join(largest), largest[0]


def _short(where: str) -> str:
    return os.path.basename(where)
