"""Turns PyTorch's memory history into allocated and reserved bytes over time, and those into peaks per step.

The history gives each allocation the size that was asked for. What `torch.cuda.memory_allocated` counts is the size
of the block that was found, so the blocks of each segment are followed here as the allocator cuts and joins them
(its round_size, should_split and try_merge_blocks, written from knowledge of c10/cuda/CUDACachingAllocator.cpp and
checked against the counters of torch 2.6.0 and 2.15.0, not against the source). Which block is found
need not be guessed: the history says its address. A history that does not add up raises `ReplayError`, unused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foretell.records import StepPeak
from foretell.trace import ACTIONS, AllocatorSettings, DeviceMemory, MemoryEvents, StepMark

MIN_BLOCK = 512
SMALL_SIZE = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
"""What the pool for requests up to SMALL_SIZE takes at a time; the other one takes more (kSmallBuffer of 2.15)."""
# How many events to either side of its time a step's end is looked for.
_EDGE_EVENTS = 256


class ReplayError(Exception):
    """The history is not whole, or was made by an allocator that works otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Bytes held just after one event."""

    time_us: int
    allocated_bytes: int
    reserved_bytes: int


class Piece:
    """A block as the allocator keeps it: in use, waiting for another stream, or free. Neighbours share a segment."""

    __slots__ = ("address", "event", "is_allocated", "is_free", "next", "prev", "requested_bytes", "segment", "size")

    def __init__(self, address: int, size: int, segment: int) -> None:
        self.address = address
        self.size = size
        self.segment = segment
        """The number of the event that brought its segment, or the first of its pages."""
        self.event = -1
        """Of the event that allocated it; free: nobody's."""
        self.requested_bytes = 0
        """Free: what was last asked for in it, which PyTorch leaves standing."""
        self.is_free = True
        self.is_allocated = False
        self.prev: Piece | None = None
        self.next: Piece | None = None


class Heap:
    """The segments and blocks of one device, followed event by event."""

    def __init__(self, settings: AllocatorSettings) -> None:
        if not settings.is_native:
            raise ReplayError("cudaMallocAsync keeps its blocks to itself")
        self._settings = settings
        self._blocks: dict[int, Piece] = {}
        self._ends: dict[int, Piece] = {}
        """Where each ends; also where one ended that is longer or gone by now."""
        self.allocated_bytes = 0
        self.reserved_bytes = 0

    def follow(self, number: int, action: str, address: int, size: int) -> bool:
        """False: no bytes move (oom, snapshot)."""
        if action == "alloc":
            self._allocate(number, address, size)
        elif action == "free_requested":
            self._request_free(address)
        elif action == "free_completed":
            self._complete_free(address)
        elif action in ("segment_alloc", "segment_map"):
            self._grow(number, address, size, is_mapped=action == "segment_map")
        elif action in ("segment_free", "segment_unmap"):
            self._shrink(address, size)
        else:
            return False
        return True

    def segments(self) -> Iterator[list[Piece]]:
        """The blocks of each, both by address."""
        for _, first in sorted(self._blocks.items()):
            if first.prev is None:
                blocks = [first]
                while (following := blocks[-1].next) is not None:
                    blocks.append(following)
                yield blocks

    def _allocate(self, number: int, address: int, size: int) -> None:
        block = self._blocks.get(address)
        if block is None or not block.is_free:
            raise ReplayError(f"alloc of {size} bytes at {address:#x}, where no free block begins")
        rounded = self._settings.round_size(size)
        if block.size < rounded:
            raise ReplayError(f"alloc of {rounded} bytes in a block of {block.size} at {address:#x}")
        if _should_split(block.size, rounded, self._settings):
            self._split(block, rounded)
        block.is_free = False
        block.is_allocated = True
        block.event = number
        block.requested_bytes = size
        self.allocated_bytes += block.size

    def _split(self, block: Piece, size: int) -> None:
        rest = Piece(block.address + size, block.size - size, block.segment)
        rest.requested_bytes = block.requested_bytes
        self._ends[rest.address + rest.size] = rest
        self._ends[rest.address] = block
        self._blocks[rest.address] = rest
        rest.prev, rest.next = block, block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        block.size = size

    def _request_free(self, address: int) -> None:
        block = self._blocks.get(address)
        if block is None or not block.is_allocated:
            raise ReplayError(f"free at {address:#x}, which is not allocated")
        block.is_allocated = False
        self.allocated_bytes -= block.size

    def _complete_free(self, address: int) -> None:
        block = self._blocks.get(address)
        if block is None or block.is_free or block.is_allocated:
            raise ReplayError(f"free completed at {address:#x}, where none was requested")
        block.is_free = True
        self._join(block)

    def _grow(self, number: int, address: int, size: int, *, is_mapped: bool) -> None:
        block = self._blocks[address] = Piece(address, size, number)
        before, after = self._ending_at(address), self._blocks.get(address + size)
        self._ends[address + size] = block
        self.reserved_bytes += size
        if not is_mapped:
            return
        # An expandable segment grows: the new part joins what lies beside it.
        if after is not None:
            after.prev, block.next = block, after
        if before is not None:
            before.next, block.prev = block, before
            block.segment = before.segment
        self._join(block)

    def _ending_at(self, address: int) -> Piece | None:
        block = self._ends.get(address)
        if block is None or self._blocks.get(block.address) is not block or block.address + block.size != address:
            return None
        return block

    def _shrink(self, address: int, size: int) -> None:
        """Takes [address, address + size) away. It lies in one free block; unmapping may leave parts on both sides."""
        block = self._blocks.get(address)
        if block is None:  # unmapping begins inside a free block: find the one that holds it
            block = next((b for b in self._blocks.values() if b.address < address < b.address + b.size), None)
        if block is None or not block.is_free or block.address + block.size < address + size:
            raise ReplayError(f"{size} bytes given back at {address:#x}, which are not free")
        before, after = block.prev, block.next
        left, right = address - block.address, block.address + block.size - address - size
        del self._blocks[block.address]
        self._ends.pop(block.address + block.size, None)
        if before is not None:
            before.next = None
        if after is not None:
            after.prev = None
        if left:
            rest = self._blocks[block.address] = Piece(block.address, left, block.segment)
            self._ends[address] = rest
            if before is not None:
                rest.prev, before.next = before, rest
        if right:
            rest = self._blocks[address + size] = Piece(address + size, right, block.segment)
            self._ends[address + size + right] = rest
            if after is not None:
                rest.next, after.prev = after, rest
        self.reserved_bytes -= size

    def _join(self, block: Piece) -> None:
        """try_merge_blocks with both neighbours."""
        after, before = block.next, block.prev
        if after is not None and after.is_free:
            del self._blocks[after.address]
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.prev = block
        if before is not None and before.is_free:
            del self._blocks[block.address]
            before.size += block.size
            before.requested_bytes = block.requested_bytes
            before.next = block.next
            if before.next is not None:
                before.next.prev = before
            block = before
        self._ends[block.address + block.size] = block


def settings_of(events: MemoryEvents, settings: AllocatorSettings) -> AllocatorSettings:
    """A script may have asked for expandable segments itself."""
    if settings.is_expandable or ACTIONS.index("segment_map") not in events.action:
        return settings
    return replace(settings, is_expandable=True)


def levels(events: MemoryEvents, *, device: int, settings: AllocatorSettings) -> Iterator[Level]:
    """The bytes after each event on one device that moves some."""
    heap = Heap(settings)
    for number, (time_us, action, address, size) in enumerate(events.of_device(device)):
        if heap.follow(number, action, address, size):
            yield Level(time_us=time_us, allocated_bytes=heap.allocated_bytes, reserved_bytes=heap.reserved_bytes)


def step_peaks(
    events: MemoryEvents, steps: Sequence[StepMark], *, device: int, settings: AllocatorSettings
) -> tuple[StepPeak, ...]:
    """The most held in each step: from the end of the one before (or the beginning) to its own end."""
    followed = list(levels(events, device=device, settings=settings))
    peaks: list[StepPeak] = []
    begin = 0
    for mark in steps:
        counters = next((d for d in mark.devices if d.device == device), None)
        if counters is None:
            raise ReplayError(f"step {mark.index} does not say what device {device} held")
        end = _end_of_step(followed, begin, mark.time_us, counters)
        # The level the step before left behind counts too: it is held when this one begins.
        inside = followed[max(begin - 1, 0) : end]
        allocated = max((level.allocated_bytes for level in inside), default=0)
        reserved = max((level.reserved_bytes for level in inside), default=0)
        peaks.append(StepPeak(index=mark.index, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved))
        begin = end
    return tuple(peaks)


def _end_of_step(followed: list[Level], begin: int, time_us: int, counters: DeviceMemory) -> int:
    """How many events happened before the mark.

    PyTorch's clock and Python's differ by microseconds, so events at the edge could fall on either side. The counters
    in the mark decide: the nearest place in time where the history has come to the same numbers.
    """
    at = bisect_right(followed, time_us, key=lambda level: level.time_us)
    wanted = (counters.allocated_bytes, counters.reserved_bytes)
    for distance in range(_EDGE_EVENTS):
        for end in (at - distance, at + distance):
            if begin <= end <= len(followed) and wanted == (_held(followed[end - 1]) if end else (0, 0)):
                return end
    raise ReplayError(
        f"the history never holds {wanted[0]} allocated and {wanted[1]} reserved bytes near the step's end"
    )


def _held(level: Level) -> tuple[int, int]:
    return level.allocated_bytes, level.reserved_bytes


def _should_split(block_size: int, size: int, settings: AllocatorSettings) -> bool:
    remaining = block_size - size
    if size <= SMALL_SIZE or settings.is_expandable:
        return remaining >= MIN_BLOCK
    return size < settings.max_split_bytes and remaining > SMALL_SIZE


def most_waiting_bytes(events: MemoryEvents, *, device: int) -> int:
    """The most that was freed but not yet given back, because another stream might still use it (record_stream).

    How long that takes is the card's doing: here it is as long as it can be, on a fast card it may be no time.
    """
    waiting: dict[int, int] = {}
    total = most = 0
    for _, action, address, size in events.of_device(device):
        if action == "free_requested":
            total += size
            waiting[address] = size
        elif action == "free_completed":
            total -= waiting.pop(address, 0)
        elif action == "alloc":
            most = max(most, total)
    return most
