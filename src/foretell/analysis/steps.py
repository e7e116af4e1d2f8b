"""The peaks of single steps, and memory waiting for other streams, from the memory history."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foretell.allocator.follow import ALLOC, FREE_COMPLETED, FREE_REQUESTED, ReplayError
from foretell.analysis.ending import has_ended_well
from foretell.analysis.history import History
from foretell.analysis.phases import phase_spans
from foretell.records import OutsideKind, OutsidePeak, Phase, StepPeak
from foretell.trace import DeviceMemory, MemoryEvents, StepMark, Trace

# How many events before and after its time to search for the end of a step.
_EDGE_EVENTS = 256


def step_peaks(trace: Trace, history: History) -> tuple[tuple[StepPeak, ...], tuple[OutsidePeak, ...]]:
    """The peak of each step, and of what ran before, between and after the steps.

    A step goes from the end of the previous one to its own end, less an evaluation in between. Something that is
    evaluated between all steps (by a teacher, a reference model, a rollout) is part of the step.
    """
    ends = step_ends(trace.memory, trace.steps, history)
    bounds = [0, *ends, len(history.rows)]
    intervals = _intervals(_spans(trace, history), bounds)
    between = intervals[1:-1]
    is_evaluation_in_steps = len(between) > 1 and all(any(s.is_evaluation for s in each) for each in between)
    steps: list[StepPeak] = []
    outside: list[OutsidePeak] = []
    last: int | None = None
    for mark, interval, bound in zip([*trace.steps, None], intervals, pairwise(bounds), strict=True):
        own, others = _sorted_out(interval, is_first=last is None, is_evaluation_in_steps=is_evaluation_in_steps)
        if mark is None:
            others["unfinished" if _is_unfinished(interval, trace) else "after"] = own
        outside += [
            OutsidePeak(kind=kind, after_step=last, **_peaks(history, parts)) for kind, parts in others.items() if parts
        ]
        if mark is not None:
            steps.append(StepPeak(index=mark.index, **_peaks(history, own or [bound])))
            last = mark.index
    return tuple(steps), tuple(outside)


@dataclass(frozen=True, slots=True)
class _Span:
    """Events of one phase."""

    begin: int
    end: int
    phase: Phase
    is_rest: bool = False
    """It began before this interval."""

    @property
    def is_evaluation(self) -> bool:
        return self.phase == "evaluation"

    @property
    def is_training(self) -> bool:
        return self.phase not in ("evaluation", "other")


def _spans(trace: Trace, history: History) -> Iterator[_Span]:
    """In events of the device. What an allocation had to take from CUDA is recorded before it, and goes with it."""
    resizes = set(history.resizes)
    begins: list[tuple[int, Phase]] = [(0, "other")]
    for span in phase_spans(trace, history):
        begin = span.begin
        while begin - 1 in resizes:
            begin -= 1
        begins.append((begin, span.phase))
    for (begin, phase), (end, _) in pairwise([*begins, (len(history.rows), "other")]):
        yield _Span(begin, end, phase)


def _intervals(spans: Iterable[_Span], bounds: Sequence[int]) -> list[list[_Span]]:
    """The spans, cut at these events."""
    intervals: list[list[_Span]] = [[] for _ in pairwise(bounds)]
    for span in spans:
        for number in range(max(bisect_right(bounds, span.begin) - 1, 0), len(intervals)):
            begin, end = max(span.begin, bounds[number]), min(span.end, bounds[number + 1])
            if begin < end:
                intervals[number].append(_Span(begin, end, span.phase, is_rest=begin > span.begin))
            if span.end <= bounds[number + 1]:
                break
    return intervals


def _is_unfinished(interval: Sequence[_Span], trace: Trace) -> bool:
    """Whether a step began here that has no end. A forward pass alone may be an evaluation with gradients, after the
    training, if the run ended well."""
    begun = {span.phase for span in interval if not span.is_rest}
    return "backward" in begun or ("forward" in begun and not has_ended_well(trace))


_Parts = list[tuple[int, int]]
"""Begin and end of consecutive events."""


def _sorted_out(
    interval: Sequence[_Span], *, is_first: bool, is_evaluation_in_steps: bool
) -> tuple[_Parts, dict[OutsideKind, _Parts]]:
    """The events of an interval that belong to its step, and the others. Those in no phase prepare the phase that
    follows, or else end the one before."""
    own: _Parts = []
    others: dict[OutsideKind, _Parts] = {"before": [], "evaluation": []}
    last_training = max((number for number, span in enumerate(interval) if span.is_training), default=-1)
    waiting: _Parts = []
    target: _Parts | None = None
    for number, span in enumerate(interval):
        part = span.begin, span.end
        if span.phase == "other":
            waiting.append(part)
            continue
        if target is None and is_first:
            others["before"], waiting = waiting, []
        is_own = span.is_training or (is_evaluation_in_steps and number < last_training)
        target = own if is_own else others["evaluation"]
        target += [*waiting, part]
        waiting = []
    (own if target is None else target).extend(waiting)
    return own, others


def _peaks(history: History, parts: _Parts) -> dict[str, int]:
    """What is held when a part begins counts too."""
    slices = [slice(max(begin - 1, 0), end) for begin, end in parts]
    return {
        "peak_allocated_bytes": max(max(history.allocated[part], default=0) for part in slices),
        "peak_reserved_bytes": max(max(history.reserved[part], default=0) for part in slices),
    }


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
