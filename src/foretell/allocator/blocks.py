"""Blocks, the parts of a segment, and pools of free blocks."""

from __future__ import annotations

from bisect import bisect_left, insort

ADDRESS_BITS = 48
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
_AGE_BITS = 32
SIZE_SHIFT = ADDRESS_BITS + _AGE_BITS
"""A free block is stored as one integer, which sorts like the real pool: by size, age of the segment and address."""


class Block:
    __slots__ = (
        "address", "age", "expandable", "gc_base", "is_allocated", "is_mapped", "next", "num_events", "pool", "prev",
        "requested", "size", "stream", "stream_uses",
    )  # fmt: skip

    def __init__(self, address: int, size: int, stream: int, pool: Pool, age: int = 0) -> None:
        self.address = address
        self.age = age
        """Increases with each segment; always 0 for versions of torch that ignore it."""
        self.size = size
        self.stream = stream
        self.pool = pool
        self.prev: Block | None = None
        self.next: Block | None = None
        self.is_allocated = False
        self.is_mapped = True
        self.requested = 0
        self.num_events = 0
        """Pending events on other streams; the block is freed when all have completed."""
        self.stream_uses: set[int] | None = None
        self.expandable: ExpandableSegment | None = None
        self.gc_base = 0

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def is_available(self) -> bool:
        return not (self.is_allocated or self.num_events or self.stream_uses)


class ExpandableSegment:
    """A range of addresses into which pages of memory are mapped as needed."""

    __slots__ = ("address", "page", "pages", "size")

    def __init__(self, address: int, size: int, page: int) -> None:
        self.address = address
        self.size = size
        self.page = page
        self.pages: set[int] = set()
        """Numbers of the mapped pages."""


class Pool:
    """Free blocks of one kind (small or large), by stream."""

    __slots__ = ("blocks", "free", "is_small", "num_lookups", "num_segments", "private", "unmapped")

    def __init__(self, *, is_small: bool, private: PrivatePool | None = None) -> None:
        self.is_small = is_small
        self.private = private
        self.free: dict[int, list[int]] = {}
        self.blocks: dict[int, Block] = {}
        """The free blocks, by address."""
        self.unmapped: dict[int, list[int]] = {}
        """Addresses of unmapped expandable blocks, by stream; the blocks are in `blocks`, too."""
        self.num_lookups = 0
        """Counted only for garbage collection."""

    def insert(self, block: Block) -> None:
        block.gc_base = self.num_lookups
        self.blocks[block.address] = block
        keys = self.free.get(block.stream)
        if keys is None:
            keys = self.free[block.stream] = []
        insort(keys, _key(block))

    def remove(self, block: Block) -> None:
        keys = self.free[block.stream]
        del keys[bisect_left(keys, _key(block))]
        del self.blocks[block.address]

    def insert_unmapped(self, block: Block) -> None:
        self.blocks[block.address] = block
        insort(self.unmapped.setdefault(block.stream, []), block.address)

    def remove_unmapped(self, block: Block) -> None:
        addresses = self.unmapped[block.stream]
        del addresses[bisect_left(addresses, block.address)]
        del self.blocks[block.address]

    def in_order(self) -> list[Block]:
        """All free blocks, by stream, size, age and address."""
        return [self.blocks[key & ADDRESS_MASK] for stream in sorted(self.free) for key in self.free[stream]]


def _key(block: Block) -> int:
    return block.size << SIZE_SHIFT | block.age << ADDRESS_BITS | block.address


class PrivatePool:
    """Pool of a CUDA graph or a torch.cuda.MemPool, which does not share its blocks."""

    __slots__ = ("is_freeable", "large", "num_segments", "small")

    def __init__(self) -> None:
        self.small = Pool(is_small=True, private=self)
        self.large = Pool(is_small=False, private=self)
        self.num_segments = 0
        self.is_freeable = False
