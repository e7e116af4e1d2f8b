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
from dataclasses import dataclass

from foretell.records import StepPeak
from foretell.trace import AllocatorSettings, DeviceMemory, MemoryEvents, StepMark

MIN_BLOCK = 512
SMALL_SIZE = 1 << 20
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


class _Block:
    __slots__ = ("address", "is_allocated", "is_free", "next", "prev", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.is_free = True
        self.is_allocated = False
        self.prev: _Block | None = None
        self.next: _Block | None = None


def levels(events: MemoryEvents, *, device: int, settings: AllocatorSettings) -> Iterator[Level]:
    """The bytes after each event on one device."""
    if not settings.is_native:
        raise ReplayError("cudaMallocAsync keeps its blocks to itself")
    blocks: dict[int, _Block] = {}
    ends: dict[int, _Block] = {}
    allocated = reserved = 0
    for time_us, action, address, size in events.of_device(device):
        if action == "alloc":
            block = blocks.get(address)
            if block is None or not block.is_free:
                raise ReplayError(f"alloc of {size} bytes at {address:#x}, where no free block begins")
            rounded = settings.round_size(size)
            if block.size < rounded:
                raise ReplayError(f"alloc of {rounded} bytes in a block of {block.size} at {address:#x}")
            if _should_split(block.size, rounded, settings):
                rest = _Block(address + rounded, block.size - rounded)
                ends[rest.address + rest.size] = rest
                ends[rest.address] = block
                blocks[rest.address] = rest
                rest.prev, rest.next = block, block.next
                if rest.next is not None:
                    rest.next.prev = rest
                block.next = rest
                block.size = rounded
            block.is_free = False
            block.is_allocated = True
            allocated += block.size
        elif action == "free_requested":
            block = blocks.get(address)
            if block is None or not block.is_allocated:
                raise ReplayError(f"free at {address:#x}, which is not allocated")
            block.is_allocated = False
            allocated -= block.size
        elif action == "free_completed":
            block = blocks.get(address)
            if block is None or block.is_free or block.is_allocated:
                raise ReplayError(f"free completed at {address:#x}, where none was requested")
            block.is_free = True
            _join(block, blocks, ends)
        elif action in ("segment_alloc", "segment_map"):
            block = blocks[address] = _Block(address, size)
            ends[address + size] = block
            reserved += size
            if action == "segment_map":  # an expandable segment grows: the new part joins what lies beside it
                before, after = ends.get(address), blocks.get(address + size)
                if before is not None and before.address != address:
                    before.next, block.prev = block, before
                if after is not None:
                    after.prev, block.next = block, after
                _join(block, blocks, ends)
        elif action in ("segment_free", "segment_unmap"):
            _cut(address, size, blocks, ends)
            reserved -= size
        else:  # oom, snapshot: no bytes move
            continue
        yield Level(time_us=time_us, allocated_bytes=allocated, reserved_bytes=reserved)


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


def _join(block: _Block, blocks: dict[int, _Block], ends: dict[int, _Block]) -> None:
    """try_merge_blocks with both neighbours."""
    after, before = block.next, block.prev
    if after is not None and after.is_free:
        del blocks[after.address]
        block.size += after.size
        block.next = after.next
        if block.next is not None:
            block.next.prev = block
    if before is not None and before.is_free:
        del blocks[block.address]
        before.size += block.size
        before.next = block.next
        if before.next is not None:
            before.next.prev = before
        block = before
    ends[block.address + block.size] = block


def _cut(address: int, size: int, blocks: dict[int, _Block], ends: dict[int, _Block]) -> None:
    """Takes [address, address + size) away. It lies in one free block; unmapping may leave a part on either side."""
    block = blocks.get(address)
    if block is None:  # unmapping begins inside a free block: find the one that holds it
        block = next((b for b in blocks.values() if b.address < address < b.address + b.size), None)
    if block is None or not block.is_free or block.address + block.size < address + size:
        raise ReplayError(f"{size} bytes given back at {address:#x}, which are not free")
    before, after = block.prev, block.next
    left, right = address - block.address, block.address + block.size - address - size
    del blocks[block.address]
    ends.pop(block.address + block.size, None)
    if before is not None:
        before.next = None
    if after is not None:
        after.prev = None
    if left:
        rest = blocks[block.address] = _Block(block.address, left)
        ends[address] = rest
        if before is not None:
            rest.prev, before.next = before, rest
    if right:
        rest = blocks[address + size] = _Block(address + size, right)
        ends[address + size + right] = rest
        if after is not None:
            rest.next, after.prev = after, rest


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
