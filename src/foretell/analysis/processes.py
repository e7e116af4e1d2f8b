"""Several processes on one card: what they need together."""

from __future__ import annotations

from foretell.records import OutOfMemory, Together
from foretell.rules import loaded_libraries
from foretell.rules.capacity import Capacity
from foretell.trace import GpuProcess, Trace
from foretell.units import format_bytes


def together(trace: Trace) -> Together | None:
    """The largest sum of the peaks of processes that lived at the same time; None if they came one after the other.

    When each had its peak is not known, so this is an upper bound.
    """
    best: Together | None = None
    for moment in {process.begin_us for process in trace.gpu_processes}:
        alive = [each for each in trace.gpu_processes if each.begin_us <= moment <= each.end_us]
        needed = sum(_device_bytes(trace, each) for each in alive)
        if len(alive) > 1 and (best is None or needed > best.device_bytes):
            reserved = sum(each.peak_bytes for each in alive)
            best = Together(num_processes=len(alive), device_bytes=needed, reserved_bytes=reserved)
    return best


def _device_bytes(trace: Trace, process: GpuProcess) -> int:
    _, libraries = loaded_libraries(trace.libraries, process.functions)
    return process.peak_bytes + libraries + trace.context_bytes


def oom_together(trace: Trace, found: Together | None) -> OutOfMemory | None:
    """Each process has the virtual card to itself, so that they do not fit together shows only in their sum."""
    if found is None:
        return None
    capacity = Capacity(
        total_bytes=trace.gpu.total_bytes,
        context_bytes=0,
        library_bytes=0,
        used_by_others_bytes=trace.used_by_others_bytes,
    )
    missing = -capacity.spare_bytes(found.device_bytes)
    if missing <= 0:
        return None
    message = (
        f"{found.num_processes} processes used the GPU at the same time. Together they need up to "
        f"{format_bytes(found.device_bytes)}, {format_bytes(missing)} more than there is."
    )
    return OutOfMemory(
        step=len(trace.steps), phase="other", requested_bytes=missing, message=message, where=None, is_together=True
    )
