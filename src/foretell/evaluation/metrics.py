"""Metrics for comparing memory estimators, per set and tool.

A run limited to its estimate fails if the estimate is too low, if it was predicted to fit and did not, or if it was
refused although it fits (PEF: how often). Memory saved is the part of the card a scheduler need not set aside (MCP); a
failed run wastes its whole allotment.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from foretell import gpus
from foretell.evaluation.intervals import causes_for
from foretell.evaluation.records import Answer, Case
from foretell.records import Cause
from foretell.rules.interval import Remainders

OURS = "foretell"
REQUEST = "foretell, request"
"""The value for a scheduler: the same estimate plus its uncertainty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One tool's estimate for one measured run."""

    tool: str
    case: Case
    num_bytes: int | None
    is_oom: bool | None
    low_bytes: int | None = None
    high_bytes: int | None = None
    causes: tuple[Cause, ...] = ()
    seconds: float | None = None

    @property
    def error(self) -> float | None:
        """(estimate - measured) / measured; None if there is no final value to compare."""
        if self.num_bytes is None or self.case.is_oom or self.case.quantity == "decision":
            return None
        if self.tool in (OURS, REQUEST) and self.is_oom:
            return None  # the level reached, not the need
        return (self.num_bytes - self.case.measured_bytes) / self.case.measured_bytes

    @property
    def fails_when_capped(self) -> bool | None:
        if self.is_oom is not None and self.is_oom != self.case.is_oom:
            return True
        if self.case.quantity == "decision":
            return None if self.is_oom is None else False
        if self.num_bytes is None:
            return None
        return not self.case.is_oom and self.num_bytes < self.case.measured_bytes

    @property
    def saved_bytes(self) -> int | None:
        if self.num_bytes is None or self.fails_when_capped is None:
            return None
        if self.case.quantity == "decision":
            return None
        if self.fails_when_capped:
            return -self.num_bytes
        return 0 if self.case.is_oom else gpus.find(self.case.gpu).total_bytes - self.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """None: not in the data."""

    set: str
    tool: str
    metric: str = "memory"
    """Or of its time, `step_ms` or a share of utilization (times.py)."""
    num_runs: int
    num_errors: int
    median_error: float | None
    p90_error: float | None
    mean_abs_error: float | None
    bias: float | None
    """Median of the signed errors."""
    oom_right: int = 0
    oom_missed: int = 0
    oom_false_alarms: int = 0
    failure_probability: float | None = None
    saved_bytes: float | None = None
    interval_coverage: float | None
    interval_width: float | None
    """Median, relative to the measured value; of a share, absolute."""
    seconds: float | None = None
    request_over_truth: float | None = None
    """Of the request: its median excess over the measured value."""
    request_holds: float | None = None
    """Of the request: the share of runs that need no more."""
    over_card: float | None = None
    """Of jobs that ran: the share whose upper end, or request, is over what the card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFigures:
    """How much of the intervals of a set one cause makes."""

    set: str
    cause: str
    num_runs: int
    """That have it."""
    width: float
    """Median over these, relative to the measured value."""
    request: float
    """What it adds to the request."""


def cause_figures(judged: Iterable[Judged]) -> list[CauseFigures]:
    shares: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for each in judged:
        if each.tool != OURS or each.error is None:
            continue
        for cause in each.causes:
            width = (cause.below_bytes + cause.above_bytes) / each.case.measured_bytes
            share = (width, cause.request_bytes / each.case.measured_bytes)
            shares.setdefault((each.case.set, cause.name), []).append(share)
    return [
        CauseFigures(
            set=set_,
            cause=cause,
            num_runs=len(rows),
            width=statistics.median(width for width, _ in rows),
            request=statistics.median(request for _, request in rows),
        )
        for (set_, cause), rows in shares.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run, with what its interval is made of."""

    set: str
    run: str
    """The key of its case."""
    job: str
    measured_bytes: int
    estimated_bytes: int
    error: float
    low_bytes: int
    high_bytes: int
    is_inside: bool
    causes: dict[str, tuple[int, int]]
    """By name: how far below and above the estimate each one reaches."""


def largest_errors(judged: Iterable[Judged], num: int) -> list[RunFigures]:
    """Of each set the runs whose estimates are the furthest off, relative to the measured value."""
    by_set: dict[str, list[Judged]] = {}
    for each in judged:
        if each.tool == OURS and each.error is not None:
            by_set.setdefault(each.case.set, []).append(each)
    largest = (sorted(own, key=lambda each: -abs(each.error or 0.0))[:num] for own in by_set.values())
    return [_run_figures(each) for own in largest for each in own]


def _run_figures(judged: Judged) -> RunFigures:
    case, low, high = judged.case, judged.low_bytes or 0, judged.high_bytes or 0
    return RunFigures(
        set=case.set,
        run=case.key,
        job=" ".join(case.arguments),
        measured_bytes=case.measured_bytes,
        estimated_bytes=judged.num_bytes or 0,
        error=judged.error or 0.0,
        low_bytes=low,
        high_bytes=high,
        is_inside=low <= case.measured_bytes <= high,
        causes={cause.name: (cause.below_bytes, cause.above_bytes) for cause in judged.causes},
    )


def judge(
    cases: Iterable[Case], answers: dict[str, Answer], calibrated: Callable[[Case], Remainders] | None = None
) -> list[Judged]:
    """Every tool's estimate for every run that the engine has an answer for. `calibrated`: the constants of the
    interval by which a case is judged, instead of those that ship."""
    judged = []
    for case in cases:
        answer = answers.get(case.key)
        if answer is None or answer.problem or not case.has_memory:
            continue
        causes = causes_for(case, answer, calibrated(case) if calibrated else None)
        ours = Judged(
            tool=OURS,
            case=case,
            num_bytes=answer.num_bytes,
            is_oom=answer.is_oom,
            low_bytes=answer.num_bytes - sum(cause.below_bytes for cause in causes),
            high_bytes=answer.num_bytes + sum(cause.above_bytes for cause in causes),
            causes=causes,
            seconds=answer.seconds,
        )
        request = answer.num_bytes + sum(cause.request_bytes for cause in causes)
        judged += [ours, replace(ours, tool=REQUEST, num_bytes=request)]
        for tool, other in case.others.items():
            judged.append(
                Judged(tool=tool, case=case, num_bytes=other.num_bytes, is_oom=other.is_oom, seconds=other.seconds)
            )
    return judged


def figures(judged: Sequence[Judged]) -> list[Figures]:
    keys = dict.fromkeys((each.case.set, each.tool) for each in judged)
    return [_figures(key, [each for each in judged if (each.case.set, each.tool) == key]) for key in keys]


def _figures(key: tuple[str, str], judged: list[Judged]) -> Figures:
    errors = [each.error for each in judged if each.error is not None]
    decided = [each for each in judged if each.is_oom is not None]
    failures = [each.fails_when_capped for each in judged if each.fails_when_capped is not None]
    saved = [each.saved_bytes for each in judged if each.saved_bytes is not None]
    within = [each for each in judged if each.error is not None and each.low_bytes and each.high_bytes]
    seconds = [each.seconds for each in judged if each.seconds is not None]
    measured = [each.case.measured_bytes for each in within]
    return Figures(
        set=key[0],
        tool=key[1],
        num_runs=len(judged),
        num_errors=len(errors),
        median_error=statistics.median(map(abs, errors)) if errors else None,
        p90_error=quantile([abs(error) for error in errors], 0.9) if errors else None,
        mean_abs_error=statistics.fmean(map(abs, errors)) if errors else None,
        bias=statistics.median(errors) if errors else None,
        oom_right=sum(each.is_oom == each.case.is_oom for each in decided),
        oom_missed=sum(each.case.is_oom and not each.is_oom for each in decided),
        oom_false_alarms=sum(bool(each.is_oom) and not each.case.is_oom for each in decided),
        failure_probability=statistics.fmean(failures) if failures else None,
        saved_bytes=statistics.fmean(saved) if saved else None,
        interval_coverage=statistics.fmean(
            (each.low_bytes or 0) <= each.case.measured_bytes <= (each.high_bytes or 0) for each in within
        )
        if within
        else None,
        interval_width=statistics.median(
            ((each.high_bytes or 0) - (each.low_bytes or 0)) / bytes_
            for each, bytes_ in zip(within, measured, strict=True)
        )
        if within
        else None,
        seconds=statistics.median(seconds) if seconds else None,
        request_over_truth=statistics.median(errors) if errors and key[1] == REQUEST else None,
        request_holds=statistics.fmean(error >= 0 for error in errors) if errors and key[1] == REQUEST else None,
        over_card=_over_card(judged),
    )


def _available_bytes(case: Case) -> int:
    """Of the card, in the terms of the measurement."""
    gpu = gpus.find(case.gpu)
    return gpu.total_bytes - (gpu.context_bytes if case.context_bytes is None else 0)


def _over_card(judged: Iterable[Judged]) -> float | None:
    upper = [
        ((each.num_bytes if each.tool == REQUEST else each.high_bytes) or 0) > _available_bytes(each.case)
        for each in judged
        if each.tool in (OURS, REQUEST) and not each.case.is_oom
    ]
    return statistics.fmean(upper) if upper else None


def quantile(values: Sequence[float], part: float) -> float:
    """Linear interpolation between neighbours, as in numpy."""
    ordered = sorted(values)
    position = part * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
