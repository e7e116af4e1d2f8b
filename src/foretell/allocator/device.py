"""The level below: the memory of a card as the driver allocates it, in pages of 2 MiB, lowest free address first."""

from __future__ import annotations

import sys
from bisect import bisect_left

PAGE = 2 << 20
_START = PAGE
"""No address is 0."""


class Device:
    def __init__(self, capacity_bytes: int = sys.maxsize, *, total_bytes: int | None = None) -> None:
        """`capacity_bytes`: the memory left after context and libraries; `total_bytes`: of the card, which determines
        the address space an expandable segment reserves."""
        self.capacity_bytes = capacity_bytes
        self.total_bytes = capacity_bytes if total_bytes is None else total_bytes
        self.used_bytes = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._num_without_gap = 0
        """Number of leading ranges without a gap between them."""

    def malloc(self, size: int) -> int | None:
        """The address, or None if the card is full."""
        pages = -(-size // PAGE) * PAGE
        if not self.charge(pages):
            return None
        return self.reserve(pages)

    def free(self, address: int) -> None:
        self.discharge(self.release(address))

    def charge(self, size: int) -> bool:
        if self.used_bytes + size > self.capacity_bytes:
            return False
        self.used_bytes += size
        return True

    def discharge(self, size: int) -> None:
        self.used_bytes -= size

    def reserve(self, size: int) -> int:
        """Reserve addresses without memory."""
        starts, ends = self._starts, self._ends
        index = self._num_without_gap
        at = ends[index - 1] if index else _START
        while index < len(starts) and at + size > starts[index]:
            at = ends[index]
            index += 1
        starts.insert(index, at)
        ends.insert(index, at + size)
        index = self._num_without_gap
        while index < len(starts) and starts[index] == (ends[index - 1] if index else _START):
            index += 1
        self._num_without_gap = index
        return at

    def release(self, address: int) -> int:
        """Release the addresses; returns the size of the range."""
        index = bisect_left(self._starts, address)
        assert self._starts[index] == address, f"{address:#x} was not handed out"
        size = self._ends[index] - address
        del self._starts[index], self._ends[index]
        self._num_without_gap = min(self._num_without_gap, index)
        return size
