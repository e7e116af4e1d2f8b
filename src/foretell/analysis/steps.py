"""The peaks of single steps, and memory waiting for other streams, from the memory history."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from foretell.allocator.follow import ALLOC, FREE_COMPLETED, FREE_REQUESTED, ReplayError
from foretell.analysis.history import History
from foretell.records import StepPeak
from foretell.trace import DeviceMemory, MemoryEvents, StepMark

# How many events before and after its time to search for the end of a step.
_EDGE_EVENTS = 256


def step_peaks(events: MemoryEvents, steps: Sequence[StepMark], history: History) -> tuple[StepPeak, ...]:
    """The peak of each step: from the end of the previous one (or the beginning) to its own end."""
    peaks: list[StepPeak] = []
    begin = 0
    for mark, end in zip(steps, step_ends(events, steps, history), strict=True):
        # The level left by the previous step counts too: it is held when this one begins.
        inside = slice(max(begin - 1, 0), end)
        allocated = max(history.allocated[inside], default=0)
        reserved = max(history.reserved[inside], default=0)
        peaks.append(StepPeak(index=mark.index, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved))
        begin = end
    return tuple(peaks)


def step_ends(events: MemoryEvents, steps: Sequence[StepMark], history: History) -> list[int]:
    """The number of events of the device before the end of each step."""
    time_us = events.time_us
    if len(history.rows) < len(time_us):
        time_us = array("q", map(time_us.__getitem__, history.rows))
    ends: list[int] = []
    for mark in steps:
        counters = next((d for d in mark.devices if d.device == history.device), None)
        if counters is None:
            raise ReplayError(f"step {mark.index} has no counters of device {history.device}")
        ends.append(_end_of_step(history, time_us, ends[-1] if ends else 0, mark.time_us, counters))
    return ends


def _end_of_step(history: History, times: array[int], begin: int, time_us: int, counters: DeviceMemory) -> int:
    """The number of events before the mark.

    PyTorch's clock and Python's differ by microseconds, so events at the edge could fall on either side. The counters
    in the mark decide: the nearest event after which the history has the same numbers.
    """
    at = bisect_right(times, time_us)
    allocated, reserved = history.allocated, history.reserved
    wanted = (counters.allocated_bytes, counters.reserved_bytes)
    for distance in range(_EDGE_EVENTS):
        for end in (at - distance, at + distance):
            if begin <= end <= len(times) and wanted == ((allocated[end - 1], reserved[end - 1]) if end else (0, 0)):
                return end
    raise ReplayError(
        f"the history never reaches {wanted[0]} allocated and {wanted[1]} reserved bytes near the end of the step"
    )


def most_waiting_bytes(events: MemoryEvents, *, device: int) -> int:
    """The most bytes that were freed but not yet reusable, because another stream might still use them (record_stream).

    How long that takes depends on the card: here it is the maximum; on a fast card it may be no time.
    """
    waiting: dict[int, int] = {}
    total = most = 0
    for action, address, size, of in zip(events.action, events.address, events.size, events.device, strict=True):
        if of != device:
            continue
        if action == FREE_REQUESTED:
            total += size
            waiting[address] = size
        elif action == FREE_COMPLETED:
            total -= waiting.pop(address, 0)
        elif total > most and action == ALLOC:
            most = total
    return most
