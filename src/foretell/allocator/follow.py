"""Replay of a memory history written by PyTorch: the segments and blocks of one device.

The history has the requested size of each allocation. `torch.cuda.memory_allocated` counts the size of the block found
for it, so this module splits and merges the blocks of each segment as the allocator does (its round_size, should_split
and try_merge_blocks, written from knowledge of c10/cuda/CUDACachingAllocator.cpp and checked against the counters of
torch 2.6.0 and 2.15.0, not against the source). Which block is found is not guessed: the history has its address. An
inconsistent history raises `ReplayError` and is not used.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from ..protocol.history import ACTIONS
from .settings import AllocatorSettings

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = (
    ACTIONS.index(action)
    for action in (
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"
    )
)  # fmt: skip
MIN_BLOCK = 512
SMALL_SIZE = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
"""Segment size of the pool for requests up to SMALL_SIZE; the other pool's are larger (kSmallBuffer of 2.15)."""


class ReplayError(Exception):
    """The history is incomplete, or comes from another allocator."""


class Piece:
    """A block of the allocator: in use, waiting for another stream, or free. Neighbours share a segment."""

    __slots__ = ("address", "is_allocated", "is_free", "next", "number", "prev", "requested_bytes", "segment", "size")

    def __init__(self, address: int, size: int, segment: int) -> None:
        self.address = address
        self.size = size
        self.segment = segment
        """The number passed with its segment, or with the first of its pages."""
        self.number = -1
        """The number passed with its allocation; undefined if free."""
        self.requested_bytes = 0
        """Of a free block: the last requested size, which PyTorch does not reset."""
        self.is_free = True
        self.is_allocated = False
        self.prev: Piece | None = None
        self.next: Piece | None = None


class Heap:
    """The segments and blocks of one device, updated event by event. Numbers are the caller's handles."""

    def __init__(self, settings: AllocatorSettings) -> None:
        if not settings.is_native:
            raise ReplayError("cudaMallocAsync does not report its blocks")
        self._settings = settings
        self._rounded: dict[int, int] = {}
        self._blocks: dict[int, Piece] = {}
        self._ends: dict[int, Piece] = {}
        """Blocks by end address; may have stale entries for blocks that have grown or are gone."""
        self.allocated_bytes = 0
        self.reserved_bytes = 0

    def follow(self, number: int, action: int, address: int, size: int) -> None:
        """Apply one event of any kind; events that move no bytes (oom, snapshot) change nothing."""
        if action == ALLOC:
            self.allocate(number, address, size)
        elif action == FREE_REQUESTED:
            self.request_free(address)
        elif action == FREE_COMPLETED:
            self.complete_free(address)
        else:
            self.resize(number, action, address, size)

    def resize(self, number: int, action: int, address: int, size: int) -> None:
        """Apply a segment event: memory from the card, or back to it."""
        if action in (SEGMENT_ALLOC, SEGMENT_MAP):
            self._grow(number, address, size, is_mapped=action == SEGMENT_MAP)
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            self._shrink(address, size)

    def held(self) -> dict[int, Piece]:
        """Allocated blocks, by address."""
        return {address: piece for address, piece in self._blocks.items() if piece.is_allocated}

    def allocated_at(self, address: int) -> Piece | None:
        """The block that begins there, if it is in use."""
        block = self._blocks.get(address)
        return block if block is not None and block.is_allocated else None

    def segments(self) -> Iterator[list[Piece]]:
        """The blocks of each segment, both ordered by address."""
        for _, first in sorted(self._blocks.items()):
            if first.prev is None:
                blocks = [first]
                while (following := blocks[-1].next) is not None:
                    blocks.append(following)
                yield blocks

    def allocate(self, number: int, address: int, size: int) -> Piece:
        block = self._blocks.get(address)
        if block is None or not block.is_free:
            raise ReplayError(f"{size} bytes allocated at {address:#x}, where no free block starts")
        rounded = self._rounded.get(size)
        if rounded is None:
            rounded = self._rounded[size] = self._settings.round_size(size)
        remaining = block.size - rounded
        if remaining < 0:
            raise ReplayError(f"{rounded} bytes allocated in a block of {block.size} at {address:#x}")
        if remaining >= MIN_BLOCK and _should_split(rounded, remaining, self._settings):
            self._split(block, rounded)
        block.is_free = False
        block.is_allocated = True
        block.number = number
        block.requested_bytes = size
        self.allocated_bytes += block.size
        return block

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

    def request_free(self, address: int) -> Piece:
        block = self._blocks.get(address)
        if block is None or not block.is_allocated:
            raise ReplayError(f"{address:#x} freed, but not allocated")
        block.is_allocated = False
        self.allocated_bytes -= block.size
        return block

    def complete_free(self, address: int) -> int:
        """Free the block; returns the number of its allocation."""
        block = self._blocks.get(address)
        if block is None or block.is_free or block.is_allocated:
            raise ReplayError(f"free completed at {address:#x}, but not requested")
        block.is_free = True
        self._join(block)
        return block.number

    def _grow(self, number: int, address: int, size: int, *, is_mapped: bool) -> None:
        block = self._blocks[address] = Piece(address, size, number)
        before, after = self._ending_at(address), self._blocks.get(address + size)
        self._ends[address + size] = block
        self.reserved_bytes += size
        if not is_mapped:
            return
        # An expandable segment grows: the new part joins its neighbours.
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
        """Remove [address, address + size). It lies in one free block; unmapping may leave parts on both sides."""
        block = self._blocks.get(address)
        if block is None:  # unmapping begins inside a free block: find that block
            block = next((b for b in self._blocks.values() if b.address < address < b.address + b.size), None)
        if block is None or not block.is_free or block.address + block.size < address + size:
            raise ReplayError(f"{size} bytes at {address:#x} released, but not free")
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


def settings_of(actions: Container[int], settings: AllocatorSettings) -> AllocatorSettings:
    """The settings, expandable if the history shows it: a script may have enabled expandable segments itself."""
    if settings.is_expandable or SEGMENT_MAP not in actions:
        return settings
    return replace(settings, is_expandable=True)


def _should_split(size: int, remaining: int, settings: AllocatorSettings) -> bool:
    if size <= SMALL_SIZE or settings.is_expandable:
        return remaining >= MIN_BLOCK
    return size < settings.max_split_bytes and remaining > SMALL_SIZE
