"""The caching allocator: best fit in pools of free blocks, split and merge, new segments from the device if none fits.

Written from the description of c10/cuda/CUDACachingAllocator.cpp (torch 2.6 to 2.15), and equal to it in everything
visible from outside: sizes, addresses, counters, and when it runs out of memory. Another stream's use of a block ends
as on the virtual GPU: at the next synchronization, or after many more kernel launches.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..units import MIB
from .blocks import ADDRESS_MASK, SIZE_SHIFT, Block, ExpandableSegment, Pool, PrivatePool
from .device import Device
from .settings import AllocatorSettings

MIN_BLOCK = 512
SMALL_SIZE = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
BIG_ALLOCATION = 10 * MIB
SEGMENT_GRAIN = 2 * MIB
QUEUE_DEPTH = 1024
"""Launches a card queues; beyond that, the host waits for the first of them."""


class OutOfMemoryError(Exception):
    def __init__(self, requested_bytes: int) -> None:
        super().__init__(f"out of memory: tried to allocate {requested_bytes} bytes")
        self.requested_bytes = requested_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as in torch.cuda.memory_snapshot: its mapped part and its blocks."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    blocks: tuple[tuple[int, bool], ...]
    """(size, is allocated), in order."""


class CachingAllocator:
    def __init__(
        self, device: Device | None = None, settings: AllocatorSettings | None = None, *, limit_bytes: int | None = None
    ) -> None:
        """`limit_bytes`: the limit set by set_per_process_memory_fraction."""
        self.device = device or Device()
        self.limit_bytes = limit_bytes
        self.configure(settings or AllocatorSettings())
        self.allocated_bytes = self.active_bytes = self.reserved_bytes = self.requested_bytes = 0
        self.peak_allocated_bytes = self.peak_active_bytes = self.peak_reserved_bytes = 0
        self.num_retries = self.num_ooms = 0
        self._small, self._large = Pool(is_small=True), Pool(is_small=False)
        self._private: dict[object, PrivatePool] = {}
        self._events: dict[int, deque[tuple[Block, int]]] = {}
        """Per stream: freed blocks with recorded use there, and the number of launches at that time."""
        self._num_launches = self._num_over = 0
        self._num_over_of: dict[int, int] = {}
        """For single streams: the number of launches known to have completed there."""
        self._num_segments = 0
        self._segment_starts: dict[int, Block] = {}
        """The first block of each segment, by address."""
        self._expandable: list[ExpandableSegment] = []

    def configure(self, settings: AllocatorSettings) -> None:
        """Set the options, before any allocation or later, as `torch.cuda.memory._set_allocator_settings` does."""
        self.settings = settings
        self._is_plain_rounding = not settings.power2_divisions
        self._collects_garbage = self.limit_bytes is not None and settings.garbage_collection_threshold > 0

    # ---- what a program does -----------------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0, pool: object = None) -> Block:
        """Allocate a block; raises `OutOfMemoryError` where PyTorch would. `pool`: the private pool of this stream."""
        if self._events and (pool is None or not self.settings.is_private_like_capture):
            self._process_events()
        if self._is_plain_rounding:
            rounded = (size + 511) & -512 if size > MIN_BLOCK else MIN_BLOCK
        else:
            rounded = self.settings.round_size(size)
        if pool is None:
            chosen = self._small if rounded <= SMALL_SIZE else self._large
        else:
            owner = self._private.setdefault(pool, PrivatePool())
            chosen = owner.small if rounded <= SMALL_SIZE else owner.large
        block = self._find(chosen, rounded, stream) or self._grow_or_release(chosen, rounded, stream)
        remaining = block.size - rounded
        if remaining and self._should_split(chosen, rounded, remaining):
            self._split(block, rounded, remaining)
        block.is_allocated = True
        block.requested = size
        size = block.size
        self.requested_bytes += block.requested
        self.allocated_bytes += size
        self.active_bytes += size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self.active_bytes > self.peak_active_bytes:
            self.peak_active_bytes = self.active_bytes
        return block

    def request_free(self, block: Block) -> None:
        """Mark the block as freed by the program; it is not reused before `complete_free`."""
        block.is_allocated = False
        block.num_events += 1
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested

    def complete_free(self, block: Block) -> None:
        block.num_events -= 1
        self._give_back(block)

    def free(self, block: Block) -> None:
        block.is_allocated = False
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        if block.stream_uses:
            for stream in sorted(block.stream_uses):
                block.num_events += 1
                self._events.setdefault(stream, deque()).append((block, self._num_launches))
            block.stream_uses = None
        else:
            self._give_back(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses the block: it is freed only when that stream is done."""
        if stream == block.stream:
            return
        if block.stream_uses is None:
            block.stream_uses = set()
        block.stream_uses.add(stream)

    def launch(self, count: int = 1) -> None:
        """Count launched kernels: work on other streams progresses."""
        self._num_launches += count

    @property
    def num_launches(self) -> int:
        return self._num_launches

    def synchronize(self, stream: int | None = None, *, until: int | None = None) -> None:
        """Mark everything launched so far (or up to `until`), everywhere or on one stream, as completed. The allocator
        notices at its next allocation."""
        until = self._num_launches if until is None else until
        if stream is None:
            self._num_over = max(self._num_over, until)
        else:
            self._num_over_of[stream] = max(self._num_over_of.get(stream, 0), until)

    def empty_cache(self) -> None:
        self._release_cached()

    def release_pool(self, pool: object) -> None:
        """The graph or MemPool is gone: its free memory goes back to the device at the next release."""
        owner = self._private.get(pool)
        if owner is not None:
            owner.is_freeable = True

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_active_bytes = self.active_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def segments(self) -> Iterator[Segment]:
        """Segments by address, as in a snapshot; an expandable one yields each mapped range."""
        for address in sorted(self._segment_starts):
            first: Block | None = self._segment_starts[address]
            while first is not None:
                if not first.is_mapped:
                    first = first.next
                    continue
                blocks, last = [], first
                block: Block | None = first
                while block is not None and block.is_mapped:
                    blocks.append((block.size, block.is_allocated))
                    last, block = block, block.next
                yield Segment(
                    address=first.address,
                    size=last.address + last.size - first.address,
                    stream=first.stream,
                    is_small=first.pool.is_small,
                    is_expandable=first.expandable is not None,
                    blocks=tuple(blocks),
                )
                first = last.next

    # ---- finding -----------------------------------------------------------------------------------------------------

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self._collects_garbage:
            pool.num_lookups += 1
        keys = pool.free.get(stream)
        if not keys:
            return None
        index = bisect_left(keys, size << SIZE_SHIFT)
        if index == len(keys):
            return None
        settings = self.settings
        if settings.is_expandable:
            index = self._expandable_best(pool, keys, index)
        block = pool.blocks[keys[index] & ADDRESS_MASK]
        most = settings.max_split_bytes
        if most != sys.maxsize:
            if size < most <= block.size:
                return None
            if size >= most and block.size >= size + settings.oversize_rounding_bytes:
                return None
        del keys[index]
        del pool.blocks[block.address]
        return block

    def _expandable_best(self, pool: Pool, keys: list[int], index: int) -> int:
        """Best fit with expandable segments: a block counts with the size it can grow to."""

        def can_be(block: Block) -> int:
            following = block.next
            return block.size + (following.size if following is not None and not following.is_mapped else 0)

        block = pool.blocks[keys[index] & ADDRESS_MASK]
        while block.expandable is not None and index + 1 < len(keys):
            following = pool.blocks[keys[index + 1] & ADDRESS_MASK]
            if can_be(following) >= can_be(block):
                break
            index, block = index + 1, following
        return index

    def _should_split(self, pool: Pool, size: int, remaining: int) -> bool:
        if pool.is_small or self.settings.is_expandable:
            return remaining >= MIN_BLOCK
        return size < self.settings.max_split_bytes and remaining > SMALL_SIZE

    def _split(self, block: Block, size: int, remaining: int) -> None:
        rest = Block(block.address + size, remaining, block.stream, block.pool, block.age)
        rest.expandable = block.expandable
        rest.prev, rest.next = block, block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        block.size = size
        block.pool.insert(rest)

    # ---- giving back -------------------------------------------------------------------------------------------------

    def _give_back(self, block: Block) -> None:
        self.active_bytes -= block.size
        pool = block.pool
        if block.prev is not None:
            self._merge(block, block.prev, pool)
        if block.next is not None:
            self._merge(block, block.next, pool)
        pool.insert(block)

    def _merge(self, block: Block, neighbour: Block | None, pool: Pool) -> None:
        if neighbour is None or not neighbour.is_available or neighbour.is_mapped != block.is_mapped:
            return
        if neighbour.is_mapped:
            pool.remove(neighbour)
        else:
            pool.remove_unmapped(neighbour)
        if block.prev is neighbour:
            if neighbour.prev is not None:
                neighbour.prev.next = block
            else:
                self._segment_starts[neighbour.address] = block
            block.address = neighbour.address
            block.prev = neighbour.prev
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.prev = block
        block.size += neighbour.size

    def _process_events(self) -> None:
        for stream in list(self._events):
            events = self._events[stream]
            num_over = max(self._num_over, self._num_over_of.get(stream, 0))
            while events and (events[0][1] <= num_over or self._num_launches - events[0][1] >= QUEUE_DEPTH):
                block, _ = events.popleft()
                block.num_events -= 1
                if not block.num_events:
                    self._give_back(block)
            if not events:
                del self._events[stream]

    # ---- growing -----------------------------------------------------------------------------------------------------

    def _grow_or_release(self, pool: Pool, size: int, stream: int) -> Block:
        if self._collects_garbage:
            self._collect_garbage()
        block = self._grow(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._grow(pool, size, stream)
        if block is None and (pool.private is None or not self.settings.is_private_like_capture):
            self._release_cached()
            self.num_retries += 1
            block = self._grow(pool, size, stream)
        if block is None:
            self.num_ooms += 1
            raise OutOfMemoryError(self._segment_size(size))
        return block

    def _segment_size(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < BIG_ALLOCATION:
            return self.settings.large_segment_bytes
        return -(-size // SEGMENT_GRAIN) * SEGMENT_GRAIN

    def _grow(self, pool: Pool, size: int, stream: int) -> Block | None:
        segment = self._segment_size(size)
        if self.limit_bytes is not None and self.reserved_bytes + segment > self.limit_bytes:
            return None
        if self.settings.is_expandable:
            return self._grow_expandable(pool, size, stream)
        address = self.device.malloc(segment)
        if address is None:
            return None
        block = Block(address, segment, stream, pool, self._next_age())
        self._segment_starts[address] = block
        if pool.private is not None:
            pool.private.num_segments += 1
        self._add_reserved(segment)
        return block

    def _next_age(self) -> int:
        self._num_segments += self.settings.prefers_older_segments
        return self._num_segments

    def _add_reserved(self, size: int) -> None:
        self.reserved_bytes += size
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    # ---- expandable segments -----------------------------------------------------------------------------------------

    def _grow_expandable(self, pool: Pool, size: int, stream: int) -> Block | None:
        block = self._place_to_expand(pool, size, stream)
        if not block.is_mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # merged with the block before it
        pool.remove(block)
        return block

    def _place_to_expand(self, pool: Pool, size: int, stream: int) -> Block:
        """The lowest address where free and unmapped neighbours are large enough together; otherwise a new segment."""
        for address in pool.unmapped.get(stream, ()):
            block = pool.blocks[address]
            if block.prev is not None and block.prev.is_available:
                block = block.prev
            room, each = 0, block
            while each is not None and room < size and each.is_available:
                room += each.size
                each = each.next  # type: ignore[assignment]
            if room >= size:
                return block
        page = SMALL_SEGMENT if pool.is_small else self.settings.large_segment_bytes
        total = self.device.total_bytes
        length = -(-(total + total // 8) // page) * page
        segment = ExpandableSegment(self.device.reserve(length), length, page)
        self._expandable.append(segment)
        block = Block(segment.address, length, stream, pool, self._next_age())
        block.is_mapped = False
        block.expandable = segment
        self._segment_starts[segment.address] = block
        pool.insert_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        segment = block.expandable
        assert segment is not None
        first = (block.address - segment.address) // segment.page
        last = -(-(block.address + size - segment.address) // segment.page)
        for number in range(first, last):
            if not self.device.charge(segment.page):
                for taken in range(first, number):
                    self.device.discharge(segment.page)
                    segment.pages.discard(taken)
                return False
            segment.pages.add(number)
        mapped = (last - first) * segment.page
        pool = block.pool
        pool.remove_unmapped(block)
        block.is_mapped = True
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, block.stream, pool, block.age)
            rest.is_mapped = False
            rest.expandable = segment
            rest.prev, rest.next = block, block.next
            if rest.next is not None:
                rest.next.prev = rest
            block.next = rest
            block.size = mapped
            pool.insert_unmapped(rest)
        self._merge(block, block.prev, pool)
        self._merge(block, block.next, pool)
        pool.insert(block)
        self._add_reserved(mapped)
        return True

    def _unmap(self, block: Block) -> None:
        """Return the whole pages inside a free block to the device."""
        segment, pool = block.expandable, block.pool
        assert segment is not None
        first = -(-(block.address - segment.address) // segment.page)
        last = (block.address + block.size - segment.address) // segment.page
        if first >= last:
            return
        pool.remove(block)
        for number in range(first, last):
            segment.pages.discard(number)
            self.device.discharge(segment.page)
        start, end = segment.address + first * segment.page, segment.address + last * segment.page
        if start > block.address:
            before = Block(block.address, start - block.address, block.stream, pool, block.age)
            before.expandable = segment
            before.prev, before.next = block.prev, block
            if before.prev is not None:
                before.prev.next = before
            else:
                self._segment_starts[before.address] = before
            block.prev = before
            pool.insert(before)
        if end < block.address + block.size:
            after = Block(end, block.address + block.size - end, block.stream, pool, block.age)
            after.expandable = segment
            after.prev, after.next = block, block.next
            if after.next is not None:
                after.next.prev = after
            block.next = after
            pool.insert(after)
        if block.prev is None:
            self._segment_starts.pop(block.address, None)
            self._segment_starts[start] = block
        block.address, block.size, block.is_mapped = start, end - start, False
        self._merge(block, block.prev, pool)
        self._merge(block, block.next, pool)
        pool.insert_unmapped(block)
        self.reserved_bytes -= end - start
        if not block.is_split:
            pool.remove_unmapped(block)
            del self._segment_starts[block.address]
            self._expandable.remove(segment)
            self.device.release(segment.address)

    # ---- releasing ---------------------------------------------------------------------------------------------------

    def _release_cached(self) -> None:
        self.synchronize()
        self._process_events()
        self._release_pool(self._large)
        self._release_pool(self._small)
        for name, owner in list(self._private.items()):
            if owner.is_freeable:
                self._release_pool(owner.small)
                self._release_pool(owner.large)
                if not owner.num_segments:
                    del self._private[name]

    def _release_pool(self, pool: Pool) -> None:
        expandable = []
        for block in pool.in_order():
            if block.expandable is not None:
                expandable.append(block)
            elif not block.is_split:
                self._release(block)
        for block in expandable:
            self._unmap(block)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        del self._segment_starts[block.address]
        self.device.free(block.address)
        self.reserved_bytes -= block.size
        if block.pool.private is not None:
            block.pool.private.num_segments -= 1

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """With max_split_size: release one free block that is large enough, or several oversize ones, largest first."""
        most = self.settings.max_split_bytes
        if most == sys.maxsize:
            return False
        wanted = max(size, most)
        keys = pool.free.get(stream, [])
        index = bisect_left(keys, wanted << SIZE_SHIFT)
        if index < len(keys):
            self._release(pool.blocks[keys[index] & ADDRESS_MASK])
            return True
        released = 0
        while keys and released < wanted:
            block = pool.blocks[keys[-1] & ADDRESS_MASK]
            if block.size < most:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Free whole segments not requested for a long time, once most of the limit is reserved."""
        assert self.limit_bytes is not None
        threshold = int(self.settings.garbage_collection_threshold * self.limit_bytes)
        if self.reserved_bytes <= threshold:
            return
        wanted = self.reserved_bytes - threshold
        pool = self._large
        idle = [block for block in pool.in_order() if not block.is_split and block.expandable is None]
        ages = {id(block): pool.num_lookups - block.gc_base for block in idle}
        reclaimed, has_freed = 0, True
        while reclaimed < wanted and has_freed and idle:
            limit = sum(ages[id(block)] for block in idle) / len(idle)
            old = [block for block in idle if ages[id(block)] >= limit]
            has_freed = bool(old)
            for block in old:
                reclaimed += block.size
                self._release(block)
            idle = [block for block in idle if ages[id(block)] < limit]
