"""A saved memory history, played again on the allocator in Python: with another card, or with other options.

What the program asked for stays the same, in the same order; where each block lies and which segments are taken is
found anew. Blocks that waited for another stream wait as long as they did.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretell.allocator.blocks import Block
from foretell.allocator.caching import CachingAllocator, OutOfMemoryError
from foretell.trace import ACTIONS, MemoryEvents

_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED, _SEGMENT_FREE = (
    ACTIONS.index(action) for action in ("alloc", "free_requested", "free_completed", "segment_free")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    oom_event: int | None
    """The number of the event with which it ran out; None: it fits."""
    requested_bytes: int | None
    """What was asked for then."""


def play_again(events: MemoryEvents, allocator: CachingAllocator, *, device: int = 0) -> Outcome:
    """Ends at the first request that does not fit."""
    held: dict[int, Block] = {}
    waiting: dict[int, Block] = {}
    malloc, request_free, complete_free = allocator.malloc, allocator.request_free, allocator.complete_free
    was_emptying = False
    rows = zip(events.action, events.address, events.size, events.stream, events.device, strict=True)
    for number, (action, address, size, stream, on_device) in enumerate(rows):
        if on_device != device:
            continue
        if action == _ALLOC:
            try:
                held[address] = malloc(size, stream)
            except OutOfMemoryError:
                return _outcome(allocator, number, size)
        elif action == _FREE_REQUESTED:
            block = held.pop(address, None)
            if block is not None:  # None: it was there before the history began
                request_free(block)
                waiting[address] = block
        elif action == _FREE_COMPLETED:
            block = waiting.pop(address, None)
            if block is not None:
                complete_free(block)
        elif action == _SEGMENT_FREE and not was_emptying:
            allocator.empty_cache()
        was_emptying = action == _SEGMENT_FREE
    return _outcome(allocator, None, None)


def _outcome(allocator: CachingAllocator, oom_event: int | None, requested_bytes: int | None) -> Outcome:
    return Outcome(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        num_retries=allocator.num_retries,
        oom_event=oom_event,
        requested_bytes=requested_bytes,
    )
