"""Plays a step as host and GPU would: what the host issues, what waits for what, and when each piece of work runs.

A launch starts when the host has issued it and its stream is free; a synchronisation, or a copy that blocks, makes the
host wait. The step is repeated until host and GPU are in step with each other; the last repetition counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from foretell.time.work import Work

QUEUE_DEPTH = 1024
"""Launches the host may be ahead of the GPU."""
ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Seconds that the host takes."""

    operator: float
    """For an operator, with the Python around it."""
    launch: float
    """For a launch by the driver."""
    factor: float
    """How much slower the script's own code runs there than here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    period: float
    """Seconds from the end of a step to that of the next."""
    begin: float
    """Of the last step; the spans are in the same clock."""
    spans: tuple[tuple[float, float], ...]
    """Of each item: when it ran; empty for what is not work."""
    host_seconds: float
    """The host's own work in a step."""


def play(work: Work, durations: Sequence[float], host: Host) -> Played:
    clock = 0.0
    streams: dict[int, float] = {}
    events: dict[int, float] = {}
    queued: deque[float] = deque([0.0] * QUEUE_DEPTH, maxlen=QUEUE_DEPTH)
    begin = end = host_seconds = 0.0
    spans: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        begin, spans, host_seconds = end, [], 0.0
        for item, duration in zip(work.items, durations, strict=True):
            launching = item.host_launches * host.launch
            own = item.num_operators * host.operator + item.host_us * 1e-6 * host.factor + launching
            clock += own
            host_seconds += own
            at = streams.get(item.stream, 0.0)
            if item.kind == "wait_host":
                clock = max(clock, at if item.stream >= 0 else max(streams.values(), default=0.0))
                spans.append((clock, clock))
                continue
            if item.kind == "record_event":
                events[item.event] = at
            elif item.kind == "wait_event":
                streams[item.stream] = max(at, events.get(item.event, 0.0))
            if item.kind in ("record_event", "wait_event"):
                spans.append((clock, clock))
                continue
            clock = max(clock, queued[0])
            start = max(clock, at)
            finish = start + max(duration, launching - host.launch if start == clock else 0.0)
            streams[item.stream] = finish
            queued.append(finish)
            spans.append((start, finish))
            if item.is_blocking:
                clock = max(clock, finish)
        own = work.tail_operators * host.operator + work.tail_host_us * 1e-6 * host.factor
        clock += own
        host_seconds += own
        end = max(clock, *streams.values(), begin) if streams else clock
    return Played(period=end - begin, begin=begin, spans=tuple(spans), host_seconds=host_seconds)


def union(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans runs."""
    total = until = 0.0
    for begin, end in sorted(spans):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total
