"""A steady step as a Chrome trace, the JSON that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. One track for each stream,
one for the phases, and counters of utilization.
"""

from __future__ import annotations

import json
from typing import Any

from foretell.records import Gpu
from foretell.time.performance import typical_outcome, why_unknown
from foretell.time.work import work_of
from foretell.trace import Trace

_PHASES = 1_000_000
"""The number of the track of phases: streams have small numbers."""


def chrome_trace(trace: Trace, gpu: Gpu, *, host_factor: float | None = None) -> str:
    """Raises a ValueError if there is no step time."""
    work = work_of(trace)
    why = why_unknown(trace)
    if work is None or why is not None:
        raise ValueError(why)
    outcome, timeline = typical_outcome(work, gpu, host_factor=host_factor)
    begin = outcome.played.begin
    events: list[dict[str, Any]] = [
        _named("process_name", 0, f"{gpu.device_name}, estimated by foretell"),
        _named("thread_name", _PHASES, "phases"),
    ]
    phase, phase_begin, until = "", 0.0, 0.0
    for item, (first, last) in zip(work.items, outcome.played.spans, strict=True):
        if not item.launches:
            continue
        if item.phase != phase and phase:
            events.append(_slice(phase, _PHASES, phase_begin, until, {}))
            phase_begin = until
        phase, until = item.phase, max(until, last - begin)
        told = {
            "class": item.kernel_class, "module": item.module, "bytes": round(item.bytes), "flops": round(item.flops),
            "launches": item.launches, "known": item.is_known,
        }  # fmt: skip
        events.append(_slice(item.name, item.stream, first - begin, last - begin, told))
    events.append(_slice(phase, _PHASES, phase_begin, until, {}))
    events += [_named("thread_name", stream, f"stream {stream}") for stream in sorted({i.stream for i in work.items})]
    for at, shares in enumerate(zip(timeline.gract, timeline.smact, timeline.dram_active, strict=True)):
        values = dict(zip(("gract", "smact", "dram_active"), shares, strict=True))
        time_us = at * timeline.bucket_ms * 1e3
        for name, share in values.items():
            events.append({"name": name, "ph": "C", "pid": 0, "ts": time_us, "args": {"share": round(share, 4)}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}


def _slice(name: str, track: int, begin: float, end: float, told: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "ph": "X", "pid": 0, "tid": track, "ts": round(1e6 * begin, 3),
        "dur": round(1e6 * max(0.0, end - begin), 3), "args": told,
    }  # fmt: skip
