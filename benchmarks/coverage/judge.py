"""From what the two forks of a job left to its outcome. The counts are read as `foretell run` reads them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.coverage.jobs import OUT_OF_TIME, Fork, HarnessError, Job, Outcome, Result

from foretell.api import Run
from foretell.errors import ForetellError
from foretell.records import Estimate
from foretell.trace import Trace

SHOWN_LINES = 12


def result(job: Job, on_cpu: Fork, on_gpu: Fork | None, run: Run | None) -> Result:
    known: dict[str, Any] = {
        "seconds": {"cpu": round(on_cpu.seconds, 2), "gpu": round(on_gpu.seconds, 2) if on_gpu else 0.0},
        "num_parameters": on_cpu.said.get("num_parameters", 0),
        "num_lines": len(on_cpu.said.get("record", ())),
    }
    if on_cpu.problem.startswith(HarnessError.__name__):
        return Result(job=job.key, outcome="failed", reason=on_cpu.problem, **known)
    if on_gpu is None or run is None:
        return Result(job=job.key, outcome="not tried", reason=f"{on_cpu.problem} on the CPU", **known)
    seen = captured(run)
    known["num_unknown_reads"] = sum(read.count for read in seen.trace.unknown_reads)
    if on_cpu.problem:
        outcome, reason, evidence = failed_on_cpu(on_cpu, on_gpu)
    else:
        outcome, reason, evidence = judged(on_cpu, on_gpu, seen)
        known |= {"peak_allocated": on_gpu.said.get("allocated", 0), "peak_reserved": on_gpu.said.get("reserved", 0)}
    return Result(job=job.key, outcome=outcome, reason=reason, evidence=evidence, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    trace: Trace
    estimate: Estimate | None
    refusal: str
    """What `foretell run` would say instead of an estimate."""


def captured(run: Run) -> Captured:
    try:
        return Captured(trace=run.trace, estimate=run.complete_estimate, refusal="")
    except ForetellError as error:
        return Captured(trace=run.trace, estimate=None, refusal=str(error))


Judgement = tuple[Outcome, str, list[str]]


def failed_on_cpu(on_cpu: Fork, on_gpu: Fork) -> Judgement:
    first = first_words(on_cpu.problem)
    also = "the same on the virtual GPU" if first_words(on_gpu.problem) == first else f"virtual GPU: {said_of(on_gpu)}"
    return "fails on a real machine too", f"{first} ({also})", last_lines(on_cpu.traceback)


def said_of(on_gpu: Fork) -> str:
    return first_words(on_gpu.problem) or "ran"


def judged(on_cpu: Fork, on_gpu: Fork, seen: Captured) -> Judgement:
    evidence = last_lines(on_gpu.traceback or on_gpu.log)
    if seen.trace.unimplemented:
        names = ", ".join(dict.fromkeys(each.what for each in seen.trace.unimplemented))
        return "unsupported function", names, evidence
    if on_gpu.problem == OUT_OF_TIME:
        return "timeout", f"after {on_gpu.seconds:.0f} s; the CPU took {on_cpu.seconds:.0f} s", evidence
    if on_gpu.problem or seen.estimate is None:
        return "failed", first_words(on_gpu.problem) or seen.refusal, evidence
    counted = seen.estimate.peak.allocated_bytes, seen.estimate.peak.reserved_bytes
    inside = on_gpu.said["allocated"], on_gpu.said["reserved"]
    if counted != inside:
        return "wrong count", f"foretell {counted}, torch {inside} (allocated, reserved bytes)", []
    ours, theirs = on_gpu.said["record"], on_cpu.said["record"]
    if ours != theirs:
        return "other branch", first_difference(theirs, ours), difference(theirs, ours)
    return "ran", "", []


def first_difference(on_cpu: list[str], on_gpu: list[str]) -> str:
    for theirs, ours in zip(on_cpu, on_gpu, strict=False):
        if theirs != ours:
            return f"CPU: {theirs[:160]} | virtual GPU: {ours[:160]}"
    return f"{len(on_cpu)} lines on the CPU, {len(on_gpu)} on the virtual GPU"


def difference(on_cpu: list[str], on_gpu: list[str]) -> list[str]:
    start = next((i for i, (a, b) in enumerate(zip(on_cpu, on_gpu, strict=False)) if a != b), 0)
    near = slice(max(0, start - 3), start + 200)
    lines = difflib.unified_diff(on_cpu[near], on_gpu[near], "on the CPU", "on the virtual GPU", n=2, lineterm="")
    return [line[:300] for line in islice(lines, SHOWN_LINES)]


def first_words(text: str) -> str:
    return " ".join(text.split())[:200]


def last_lines(text: str) -> list[str]:
    return [line[:300] for line in text.strip().splitlines()[-SHOWN_LINES:]]
