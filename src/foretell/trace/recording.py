"""Writes the events of foretell's own allocator as a memory history."""

from __future__ import annotations

from foretell.allocator.recording import RecordingAllocator
from foretell.protocol.history import ACTIONS
from foretell.trace.records import DeviceMemory, MemoryEvents

_CODES = {action: code for code, action in enumerate(ACTIONS)}


class Recorder:
    """Records one device. Events get the time, stack and origin set here."""

    def __init__(self, allocator: RecordingAllocator, *, device: int = 0) -> None:
        self.allocator = allocator
        self.memory = MemoryEvents()
        self.device = device
        self.time_us: int | None = None
        """None: time is the event count, if only the order matters."""
        self.stack = self.origin = -1
        allocator.observe(self.write)

    def write(self, action: str, address: int, size: int, stream: int) -> None:
        memory = self.memory
        memory.time_us.append(len(memory.time_us) if self.time_us is None else self.time_us)
        memory.action.append(_CODES[action])
        memory.address.append(address)
        memory.size.append(size)
        memory.stream.append(stream)
        memory.device.append(self.device)
        memory.stack.append(self.stack)
        memory.origin.append(self.origin)

    @property
    def num_events(self) -> int:
        return len(self.memory.action)

    def counters(self) -> DeviceMemory:
        allocator = self.allocator
        return DeviceMemory(
            device=self.device,
            allocated_bytes=allocator.allocated_bytes,
            reserved_bytes=allocator.reserved_bytes,
            peak_allocated_bytes=allocator.peak_allocated_bytes,
            peak_reserved_bytes=allocator.peak_reserved_bytes,
        )
