"""foretell's own allocator (src/foretell/allocator), telling what it does as PyTorch's memory history would.

The process may belong to an environment without foretell: the package is loaded from where this file is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def foretell_module(name: str) -> Any:
    """`foretell.<name>`, without running foretell's own __init__, which a training script has no use for."""
    is_there = "foretell" in sys.modules
    if not is_there:
        package = ModuleType("foretell")
        package.__path__ = [_PACKAGE]
        sys.modules["foretell"] = package
    try:
        return __import__(f"foretell.{name}", fromlist=["*"])
    finally:
        if not is_there:
            del sys.modules["foretell"]


def make_allocator(*, capacity_bytes: int, total_bytes: int, torch_version: str) -> Any:
    allocator, trace = foretell_module("allocator"), foretell_module("trace")

    class RecordingDevice(allocator.Device):  # type: ignore[misc, name-defined]
        tell: Callable[[str, int, int], None] = staticmethod(lambda action, address, size: None)

        def malloc(self, size: int) -> int | None:
            address: int | None = super().malloc(size)
            if address is not None:
                self.tell("segment_alloc", address, size)
            return address

        def free(self, address: int) -> None:
            used = self.used_bytes
            super().free(address)
            self.tell("segment_free", address, used - self.used_bytes)

    class RecordingAllocator(allocator.CachingAllocator):  # type: ignore[misc, name-defined]
        OutOfMemory = allocator.OutOfMemoryError
        _tell: Callable[[str, int, int, int], None] = staticmethod(lambda *event: None)

        def observe(self, tell: Callable[[str, int, int, int], None]) -> None:
            self._tell = tell
            self.device.tell = lambda action, address, size: tell(action, address, size, 0)

        def _give_back(self, block: Any) -> None:
            self._tell("free_completed", block.address, block.requested, block.stream)
            super()._give_back(block)

        def _map(self, block: Any, size: int) -> bool:
            address, before = block.address, self.reserved_bytes
            is_mapped = bool(super()._map(block, size))
            if is_mapped:
                self._tell("segment_map", address, self.reserved_bytes - before, block.stream)
            return is_mapped

        def _unmap(self, block: Any) -> None:
            address, before, stream = block.address, self.reserved_bytes, block.stream
            super()._unmap(block)
            if self.reserved_bytes < before:
                self._tell("segment_unmap", address, before - self.reserved_bytes, stream)

    settings = trace.AllocatorSettings.of_environment(torch_version)
    return RecordingAllocator(RecordingDevice(capacity_bytes, total_bytes=total_bytes), settings)
