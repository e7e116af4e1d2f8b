"""The trace of a run as it would be on another card, or with other options of PyTorch's allocator.

The recorded requests are replayed on the allocator in Python, in the same order. Differences in the script's own
behaviour on another card (a smaller attention kernel, another batch size) are not included.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from foretell.allocator import AllocatorSettings, CachingAllocator, Device
from foretell.allocator.follow import ALLOC, ReplayError
from foretell.allocator.play import Outcome, play_again
from foretell.allocator.recording import RecordingAllocator
from foretell.analysis.history import NONE, History, follow
from foretell.analysis.lifetimes import lines_of, place_of
from foretell.analysis.steps import step_ends
from foretell.analysis.verdict import bytes_not_of_pytorch, estimate_of
from foretell.errors import UnsupportedError
from foretell.records import Estimate, Gpu, OutOfMemory
from foretell.rules import library_bytes
from foretell.rules.capacity import Capacity, capacity_for
from foretell.trace import (
    DeviceMemory,
    DriverEvents,
    Labels,
    MemoryEvents,
    OomMark,
    ScriptException,
    Spans,
    StepMark,
    Trace,
)
from foretell.trace.recording import Recorder
from foretell.trace.records import PHASES
from foretell.units import format_bytes

_MANAGED = "cudaMallocManaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    trace: Trace
    """The trace as if recorded under the new conditions."""
    recorded: Estimate
    """The estimate of the unchanged trace."""
    capacity: Capacity
    num_retries: int
    """How often the cache was emptied to free memory."""


def what_if(
    trace: Trace,
    *,
    gpu: Gpu | None = None,
    context_bytes: int | None = None,
    used_by_others_bytes: int = 0,
    settings: AllocatorSettings | None = None,
) -> WhatIf:
    """`gpu` and `settings` default to the recorded ones. Raises `UnsupportedError` if the trace cannot be replayed."""
    settings = settings or trace.allocator
    if not settings.is_native:
        raise UnsupportedError("cudaMallocAsync cannot be replayed: it is the driver's. Run the script with it.")
    recorded = estimate_of(trace, attributes=False)
    _check(trace, recorded)
    context = context_bytes if context_bytes is not None else gpu.context_bytes if gpu else trace.context_bytes
    libraries = library_bytes(gpu, context_bytes=context_bytes) if gpu else trace.libraries
    capacity = capacity_for(
        gpu or trace.gpu,
        context_bytes=context,
        libraries=libraries,
        functions=trace.library_functions(),
        used_by_others_bytes=used_by_others_bytes,
    )
    try:
        played = [_Playing(trace, device, capacity, settings) for device in sorted(set(trace.memory.device))]
    except ReplayError as error:
        raise UnsupportedError(
            f"this trace cannot be replayed, because its history is incomplete: {error}. Run the script on that GPU "
            "instead."
        ) from None
    changed = _Changed(trace, played)
    return WhatIf(
        trace=replace(
            trace,
            gpu=gpu or trace.gpu,
            context_bytes=context,
            is_context_given=context_bytes is not None or (gpu is None and trace.is_context_given),
            libraries=libraries,
            used_by_others_bytes=used_by_others_bytes,
            allocator=settings,
            seconds={},
            exit_status=1 if changed.oom else trace.exit_status,
            need=None,
            need_unknown=None,
            exception=changed.exception() if changed.oom else trace.exception,
            ooms=(*trace.ooms, *([changed.oom] if changed.oom else [])),
            is_ended=True,
            steps=changed.steps(),
            final=tuple(each.recorder.counters() for each in played),
            memory=changed.memory,
            labels=changed.labels(),
            spans=changed.spans(),
            driver=changed.driver(),
            caveats=(*trace.caveats, _caveat(trace, gpu)),
        ),
        recorded=recorded,
        capacity=capacity,
        num_retries=sum(each.outcome.num_retries for each in played),
    )


def _caveat(trace: Trace, gpu: Gpu | None) -> str:
    what = f"recorded on {trace.gpu.name}" if gpu is not None and gpu.name != trace.gpu.name else "recorded"
    return f"the allocations of a run {what} were replayed; anything the script would do differently is not included"


def _check(trace: Trace, recorded: Estimate) -> None:
    """Replayed on the recorded GPU, the run must reach the recorded peaks."""
    if recorded.oom is not None:
        raise UnsupportedError(
            "the recorded run ran out of memory, so its later allocations are unknown. Record it on a larger GPU: "
            "foretell run --gpu 96GiB,sm90 --trace ..."
        )
    if not trace.allocator.is_native:
        raise UnsupportedError("the run used cudaMallocAsync, whose allocations are not in the trace.")
    card = Device(trace.gpu.total_bytes)
    again = play_again(trace.memory, CachingAllocator(card, trace.allocator), device=trace.busiest_device)
    found = (again.peak_allocated_bytes, again.peak_reserved_bytes)
    peaks = (recorded.peak.allocated_bytes, recorded.peak.reserved_bytes)
    if found != peaks:
        raise UnsupportedError(
            f"this trace cannot be replayed: its allocations lead to peaks of {found}, but the run had {peaks} "
            "(allocated, reserved). Possible reasons are CUDA graphs, memory pools created by the script, and an "
            "incomplete history. Run the script on that GPU instead."
        )


class _Playing:
    """The replayed events of one device."""

    def __init__(self, trace: Trace, device: int, capacity: Capacity, settings: AllocatorSettings) -> None:
        self.device = device
        self.history = follow(trace, device)
        """As recorded."""
        allocator = RecordingAllocator(capacity.reservable_bytes, settings, total_bytes=capacity.total_bytes)
        self.recorder = Recorder(allocator, device=device)
        self.causes = array("q")
        """For each new event: the number of the recorded event that caused it."""
        self._memory = trace.memory
        self._cause = 0
        self.outcome: Outcome = play_again(
            trace.memory, allocator, device=device, on_event=self._begin, write=self.recorder.write
        )
        self.causes.extend([self._cause] * (self.recorder.num_events - len(self.causes)))

    def _begin(self, number: int) -> None:
        self.causes.extend([self._cause] * (self.recorder.num_events - len(self.causes)))
        self._cause = number
        recorder, memory = self.recorder, self._memory
        recorder.time_us, recorder.stack, recorder.origin = (
            memory.time_us[number], memory.stack[number], memory.origin[number],
        )  # fmt: skip


class _Changed:
    """The parts of a trace that change with its events."""

    def __init__(self, trace: Trace, played: Sequence[_Playing]) -> None:
        self._trace = trace
        self._played = played
        ooms = [each for each in played if each.outcome.oom_event is not None]
        first = min(ooms, key=lambda each: each.outcome.oom_event or 0, default=None)
        self._last_cause = len(trace.memory.action) if first is None else first.outcome.oom_event
        self.memory, self._causes = _merged(played, self._last_cause)
        self.oom = None if first is None else self._oom(first)

    def exception(self) -> ScriptException:
        assert self.oom is not None
        oom = self.oom.oom
        return ScriptException(type="torch.OutOfMemoryError", message=oom.message, where=oom.where, is_oom=True)

    def steps(self) -> tuple[StepMark, ...]:
        """Step marks with the counters PyTorch would have had at the end of each."""
        end = None if self.oom is None else self.oom.time_us
        marks = [mark for mark in self._trace.steps if end is None or mark.time_us < end]
        devices = [_counters_at(each, self._trace, marks) for each in self._played]
        counted = zip(*devices, strict=True)
        return tuple(replace(mark, devices=counters) for mark, counters in zip(marks, counted, strict=True))

    def labels(self) -> Labels:
        """One label per block that had one, placed after its allocation."""
        rows = []
        for each in self._played:
            lives = each.history.lives
            life_of = {each.history.rows[begin]: number for number, begin in enumerate(lives.begin)}
            for event, cause in enumerate(self._causes):
                if self.memory.action[event] == ALLOC and self.memory.device[event] == each.device:
                    life = life_of[cause]
                    if lives.label[life] != NONE:
                        address = self.memory.address[event]
                        rows.append((event + 1, each.device, address, lives.label[life], lives.name[life]))
        return Labels(**_columns(Labels(), sorted(rows)))

    def spans(self) -> Spans:
        spans = self._trace.spans
        events = array("q", (bisect_left(self._causes, event) for event in spans.event))
        return replace(spans, event=events)

    def driver(self) -> DriverEvents:
        """Memory not allocated by PyTorch stays, on top of PyTorch's new peak; managed memory stays, too."""
        trace, old = self._trace, self._trace.driver
        managed = {number for number, name in enumerate(trace.names) if name == _MANAGED}
        rows = [
            (time_us, is_free, name, address, size, device, 0)
            for time_us, is_free, name, address, size, device in zip(
                old.time_us, old.is_free, old.name, old.address, old.size, old.device, strict=True
            )
            if name in managed
        ]
        for each in self._played:
            counters = each.recorder.counters()
            others = bytes_not_of_pytorch(trace, _counted(trace, each.device))
            if others:
                rows.append((0, 0, len(trace.names), 0, 0, each.device, counters.peak_reserved_bytes + others))
        return DriverEvents(**_columns(DriverEvents(), rows))

    def _oom(self, playing: _Playing) -> OomMark:
        event, outcome = playing.outcome.oom_event, playing.outcome
        assert event is not None
        assert outcome.requested_bytes is not None
        trace, device = self._trace, playing.recorder.allocator.device
        time_us = trace.memory.time_us[event]
        span = bisect_right(trace.spans.event, event) - 1
        place = place_of(trace, lines_of(trace), trace.memory.stack[event], trace.memory.origin[event])
        free = max(0, device.capacity_bytes - device.used_bytes)
        return OomMark(
            time_us=time_us,
            oom=OutOfMemory(
                step=sum(mark.time_us < time_us for mark in trace.steps),
                phase=PHASES[trace.spans.phase[span]] if span >= 0 else "other",
                requested_bytes=outcome.requested_bytes,
                message=f"CUDA out of memory. Tried to allocate {format_bytes(outcome.requested_bytes)}. GPU "
                f"{playing.device} has a total capacity of {format_bytes(device.total_bytes)} of which "
                f"{format_bytes(free)} is free.",
                where=place.where,
            ),
        )


def _merged(played: Sequence[_Playing], last_cause: int | None) -> tuple[MemoryEvents, array[int]]:
    """The events of all devices, in the order of the recorded events that caused them."""
    if len(played) == 1:
        return played[0].recorder.memory, played[0].causes
    order = sorted(
        (cause, at, event)
        for at, each in enumerate(played)
        for event, cause in enumerate(each.causes)
        if last_cause is None or cause <= last_cause
    )
    tables = [each.recorder.memory for each in played]
    columns = {
        f.name: array(getattr(MemoryEvents(), f.name).typecode, (getattr(tables[at], f.name)[e] for _, at, e in order))
        for f in fields(MemoryEvents)
    }
    return MemoryEvents(**columns), array("q", (cause for cause, _, _ in order))


def _counters_at(playing: _Playing, trace: Trace, marks: Sequence[StepMark]) -> list[DeviceMemory]:
    """The counters of one device at the end of each step."""
    rows, causes = playing.history.rows, playing.causes
    recorder = playing.recorder
    played = replace(trace, memory=recorder.memory, labels=Labels(), allocator=recorder.allocator.settings)
    new: History = follow(played, playing.device)
    try:
        ends = step_ends(trace.memory, marks, playing.history)
    except ReplayError:
        times = [trace.memory.time_us[row] for row in rows]
        ends = [bisect_right(times, mark.time_us) for mark in marks]
    counters = []
    begin = most_allocated = most_reserved = 0
    for end in ends:
        at = bisect_left(causes, rows[end]) if end < len(rows) else len(causes)
        most_allocated = max(most_allocated, max(new.allocated[begin:at], default=0))
        most_reserved = max(most_reserved, max(new.reserved[begin:at], default=0))
        counters.append(
            DeviceMemory(
                device=playing.device,
                allocated_bytes=new.allocated[at - 1] if at else 0,
                reserved_bytes=new.reserved[at - 1] if at else 0,
                peak_allocated_bytes=most_allocated,
                peak_reserved_bytes=most_reserved,
            )
        )
        begin = at
    return counters


def _counted(trace: Trace, device: int) -> DeviceMemory:
    """PyTorch's last counters for a device."""
    nothing = DeviceMemory(
        device=device, allocated_bytes=0, reserved_bytes=0, peak_allocated_bytes=0, peak_reserved_bytes=0
    )
    return next((each for each in trace.final if each.device == device), nothing)


def _columns(table: Labels | DriverEvents, rows: Iterable[tuple[int, ...]]) -> dict[str, array[int]]:
    names = [f.name for f in fields(table)]
    values = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: array(getattr(table, name).typecode, column) for name, column in zip(names, values, strict=True)}
