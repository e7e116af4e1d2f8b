"""Replay of a saved memory history on the allocator in Python: with another card, or with other options.

The requests of the program stay the same, in the same order; addresses and segments are computed anew. Blocks that
waited for another stream wait as long as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..protocol.history import ACTIONS
from .blocks import Block
from .caching import CachingAllocator, OutOfMemoryError

_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED, _SEGMENT_FREE = (
    ACTIONS.index(action) for action in ("alloc", "free_requested", "free_completed", "segment_free")
)


class Events(Protocol):
    """Columns of a memory history (`trace.MemoryEvents`)."""

    @property
    def action(self) -> Sequence[int]: ...
    @property
    def address(self) -> Sequence[int]: ...
    @property
    def size(self) -> Sequence[int]: ...
    @property
    def stream(self) -> Sequence[int]: ...
    @property
    def device(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    oom_event: int | None
    """Number of the event that ran out of memory; None: it fits."""
    requested_bytes: int | None
    """Size of the request that failed."""


def play_again(
    events: Events,
    allocator: CachingAllocator,
    *,
    device: int,
    on_event: Callable[[int], None] | None = None,
    write: Callable[[str, int, int, int], None] | None = None,
) -> Outcome:
    """Replay the events, up to the first request that does not fit.

    A `RecordingAllocator` reports segment events and completed frees to its observer; `write` gets the allocations and
    frees of the program in the same form, and `on_event` the number of each event before it is replayed.
    """
    held: dict[int, Block] = {}
    waiting: dict[int, Block] = {}
    malloc, request_free, complete_free = allocator.malloc, allocator.request_free, allocator.complete_free
    was_emptying = False
    rows = zip(events.action, events.address, events.size, events.stream, events.device, strict=True)
    for number, (action, address, size, stream, on_device) in enumerate(rows):
        if on_device != device:
            continue
        if on_event is not None:
            on_event(number)
        if action == _ALLOC:
            try:
                block = held[address] = malloc(size, stream)
            except OutOfMemoryError:
                return _outcome(allocator, number, size)
            if write is not None:
                write("alloc", block.address, size, stream)
        elif action == _FREE_REQUESTED:
            freed = held.pop(address, None)
            if freed is not None:  # None: allocated before the history began
                if write is not None:
                    write("free_requested", freed.address, size, stream)
                request_free(freed)
                waiting[address] = freed
        elif action == _FREE_COMPLETED:
            freed = waiting.pop(address, None)
            if freed is not None:
                complete_free(freed)
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
