"""The allocator with a record of its events, in the form of PyTorch's memory history."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .blocks import Block
from .caching import CachingAllocator, OutOfMemoryError
from .device import Device
from .settings import AllocatorSettings


class RecordingDevice(Device):
    tell: Callable[[str, int, int], None] = staticmethod(lambda action, address, size: None)

    def malloc(self, size: int) -> int | None:
        address = super().malloc(size)
        if address is not None:
            self.tell("segment_alloc", address, size)
        return address

    def free(self, address: int) -> None:
        used = self.used_bytes
        super().free(address)
        self.tell("segment_free", address, used - self.used_bytes)


class RecordingAllocator(CachingAllocator):
    device: RecordingDevice
    OutOfMemory = OutOfMemoryError
    settings_text: str | None = None
    """In the syntax of PYTORCH_ALLOC_CONF; None: not set yet."""
    _tell: Callable[[str, int, int, int], None] = staticmethod(lambda *event: None)

    def __init__(
        self,
        capacity_bytes: int = sys.maxsize,
        settings: AllocatorSettings | None = None,
        *,
        total_bytes: int | None = None,
        torch_version: str | None = None,
    ) -> None:
        super().__init__(RecordingDevice(capacity_bytes, total_bytes=total_bytes), settings)
        self._torch_version = torch_version

    def observe(self, tell: Callable[[str, int, int, int], None]) -> None:
        self._tell = tell
        self.device.tell = lambda action, address, size: tell(action, address, size, 0)

    def set_settings(self, text: str) -> None:
        self.settings_text = text
        self.configure(AllocatorSettings.parse(text, self._torch_version))

    def _give_back(self, block: Block) -> None:
        self._tell("free_completed", block.address, block.requested, block.stream)
        super()._give_back(block)

    def _map(self, block: Block, size: int) -> bool:
        address, before = block.address, self.reserved_bytes
        is_mapped = super()._map(block, size)
        if is_mapped:
            self._tell("segment_map", address, self.reserved_bytes - before, block.stream)
        return is_mapped

    def _unmap(self, block: Block) -> None:
        address, before, stream = block.address, self.reserved_bytes, block.stream
        super()._unmap(block)
        if self.reserved_bytes < before:
            self._tell("segment_unmap", address, before - self.reserved_bytes, stream)
