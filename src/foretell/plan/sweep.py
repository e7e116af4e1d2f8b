"""A grid of knobs and values: what the job needs at each point, and whether it fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from foretell import api
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.jobs import Job
from foretell.plan.knobs import Knob, LoaderBatch
from foretell.plan.loaders import observe
from foretell.plan.maximum import REFUSED, Verdict, refuse_if_it_runs_without, with_host_limit
from foretell.plan.variants import Outcome, Variants, recorded_briefly
from foretell.records import Estimate, Need
from foretell.runs.pool import Workers

MOST_POINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values."""

    values: tuple[str, ...]
    """In the order of the knobs."""
    verdict: Verdict
    estimate: Estimate | None
    """On the card of the job; None: the script failed."""
    need: Need | None = None
    """If it does not fit: what it needs."""
    problem: str | None = None
    """Why there is no verdict."""

    @property
    def device_bytes(self) -> int | None:
        """What it needs of a card; None if that is not known."""
        if self.verdict == "fits" and self.estimate is not None:
            return self.estimate.device_bytes
        return None if self.need is None else self.need.device_bytes

    @property
    def reserved_bytes(self) -> int | None:
        if self.verdict == "fits" and self.estimate is not None:
            return self.estimate.peak.reserved_bytes
        return None if self.need is None else self.need.reserved_bytes

    @property
    def request_bytes(self) -> int | None:
        if self.verdict == "fits" and self.estimate is not None:
            return self.estimate.request_bytes
        return None if self.need is None else self.need.request_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    job: Job
    knobs: tuple[Knob, ...]
    points: tuple[Point, ...]
    """All combinations; the last knob changes fastest."""

    @property
    def available_bytes(self) -> int:
        return self.job.available_bytes

    @property
    def fits(self) -> bool:
        """Whether any point does."""
        return any(point.verdict == "fits" for point in self.points)

    @property
    def without_effect(self) -> tuple[Knob, ...]:
        """Knobs that never change what the job needs."""
        return tuple(knob for number, knob in enumerate(self.knobs) if not self._has_effect(number))

    def _has_effect(self, number: int) -> bool:
        groups: dict[tuple[str, ...], list[Point]] = {}
        for point in self.points:
            groups.setdefault(point.values[:number] + point.values[number + 1 :], []).append(point)
        compared = [group for group in groups.values() if len(group) > 1]
        return not compared or any(len({_outcome_of(point) for point in group}) > 1 for group in compared)


def _outcome_of(point: Point) -> object:
    allocated = None if point.estimate is None else point.estimate.peak.allocated_bytes
    return (point.verdict, allocated, point.device_bytes)


def sweep(
    job: Job,
    grid: Sequence[tuple[Knob, Sequence[str]]],
    *,
    finds_need: bool = True,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
    on_point: Callable[[Sequence[Knob], Point], None] = lambda knobs, point: None,
) -> Sweep:
    """Run the job with all combinations of the values. Those that do not fit are run again on a card with much more
    memory, to find out what they need. Raises if the script does not accept a knob, or fails with every combination."""
    check_grid(grid)
    knobs = tuple(observe(job, say=say)[0] if isinstance(knob, LoaderBatch) else knob for knob, _ in grid)
    combinations = list(itertools.product(*(values for _, values in grid)))
    with Points(job, knobs, finds_need=finds_need, workers=workers, say=say, on_point=on_point) as points:
        found = points.run(combinations)
        points.refuse_failures(found)
    return Sweep(job=job, knobs=knobs, points=tuple(found))


class Points:
    """Runs the job with combinations of the knobs' values."""

    def __init__(
        self,
        job: Job,
        knobs: Sequence[Knob],
        *,
        finds_need: bool,
        workers: Workers | None,
        say: Callable[[str], None],
        on_point: Callable[[Sequence[Knob], Point], None],
    ) -> None:
        self._knobs = knobs
        self._finds_need = finds_need
        self._say = say
        self._on_point = on_point
        self._values_of: dict[str, tuple[str, ...]] = {}
        self._variants = Variants(job, workers=workers, say=say, on_outcome=self._note)
        self._job = with_host_limit(job, self._variants.num_workers)

    def __enter__(self) -> Points:
        self._variants.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._variants.__exit__(kind, error, at)

    def run(self, combinations: Sequence[tuple[str, ...]]) -> list[Point]:
        jobs = [_set(self._knobs, self._job, values) for values in combinations]
        self._values_of.update(zip((recorded_briefly(each).key for each in jobs), combinations, strict=True))
        points = [_point(*each) for each in zip(combinations, self._variants.run(jobs), strict=True)]
        too_large = [number for number, point in enumerate(points) if point.verdict == "does not fit"]
        if self._finds_need and too_large:
            self._say(
                f"{len(too_large)} of {len(points)} do not fit; running them on a larger card to see what they need"
            )
            card = api.with_much_memory(self._job.gpu)
            outcomes = self._variants.run([replace(jobs[number], gpu=card) for number in too_large])
            for number, outcome in zip(too_large, outcomes, strict=True):
                points[number] = replace(points[number], need=_need(outcome))
        return points

    def _note(self, job: Job, outcome: Outcome) -> None:
        if job.key in self._values_of:
            self._on_point(self._knobs, _point(self._values_of[job.key], outcome))

    def refuse_failures(self, points: Sequence[Point]) -> None:
        """Raise if no combination gave a verdict."""
        if any(point.verdict != "failed" for point in points):
            return
        problem = points[0].problem or "the script failed"
        refused = [line.strip() for line in problem.splitlines() if REFUSED.search(line)]
        names = ", ".join(knob.name for knob in self._knobs)
        if refused:
            raise UsageError(f"the script does not accept {names}: {refused[-1]}")
        refuse_if_it_runs_without(self._variants, self._job, self._knobs, [problem])
        if any(point.problem and "script itself" in point.problem for point in points):
            raise ScriptError(f"the script itself fails with every value of {names}: {problem}")
        raise UnsupportedError(problem)


def _need(outcome: Outcome) -> Need | None:
    estimate = outcome.estimate
    return None if estimate is None or estimate.oom or outcome.why_unknown else api.need_of(estimate)


def check_grid(grid: Sequence[tuple[Knob, Sequence[str]]]) -> None:
    if not grid:
        raise UsageError(
            "no knob given. Give at least one with its values, for example --arg=--batch-size=8,16,32 or "
            "--env BATCH_SIZE=8,16."
        )
    for number, (knob, values) in enumerate(grid):
        if not values or not all(values):
            raise UsageError(f"{knob.name}: no values given, or an empty one. Give them after =, as in 8,16,32.")
        if len(set(values)) < len(values):
            twice = next(value for value in values if list(values).count(value) > 1)
            raise UsageError(f"{knob.name}: the value {twice} is given twice.")
        if any(other.name == knob.name and other.kind == knob.kind for other, _ in grid[:number]):
            raise UsageError(f"{knob.name} is given twice; give all its values at once.")
    num_points = 1
    for _, values in grid:
        num_points *= len(values)
    if num_points > MOST_POINTS:
        raise UsageError(f"{num_points} combinations are more than {MOST_POINTS}. Give fewer values.")


def _set(knobs: Sequence[Knob], job: Job, values: Sequence[str]) -> Job:
    for knob, value in zip(knobs, values, strict=True):
        knob.value_in(job)
        job = knob.set(job, value)
    return job


def _point(values: tuple[str, ...], outcome: Outcome) -> Point:
    estimate = outcome.estimate
    if estimate is None or outcome.why_unknown is not None:
        return Point(values=values, verdict="failed", estimate=None, problem=outcome.why_unknown)
    return Point(values=values, verdict="fits" if estimate.verdict == "fits" else "does not fit", estimate=estimate)

