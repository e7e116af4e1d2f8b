"""How many GPUs a job needs: the smallest number with which no rank runs out of memory, for each combination of other
knobs.

What a rank needs falls with the number of ranks if parameters, gradients or optimizer state are sharded, but not
smoothly: it jumps where a machine is full, and a script may not run with every number. So the numbers double until one
fits; then the numbers of whole machines below it are halved down to the smallest. Doubling ends early where what is
left to gain is too little: a + b/N through the last two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretell.errors import UsageError
from foretell.jobs import Job
from foretell.plan.knobs import Knob, LoaderBatch, WorldSize
from foretell.plan.loaders import observe
from foretell.plan.sweep import Point, Points, Sweep, check_grid
from foretell.records import Estimate
from foretell.runs.pool import Workers
from foretell.runs.worlds import GPUS_PER_NODE, MOST_RANKS, check_size

MOST_GPUS = 1024
"""The end of the range, if none is given."""
_MARGIN = 1.02
"""What would be left with any number of GPUs must exceed the card by so much to end the search: it is a prediction."""
_MOST_FAILURES = 4
"""Numbers between two others with which the script fails, until those between are given up."""
_MOST_FAILURES_AT_FIRST = 6
"""1 to 32: a script that fails with all of them is not waiting for enough GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One combination of the other knobs."""

    values: tuple[str, ...]
    smallest: int | None
    """GPUs; None: no number that was tried fits."""
    why: str
    """What is known of the next smaller number, or why none fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    sweep: Sweep
    """All that was run; the first knob is the number of GPUs."""
    ways: tuple[Way, ...]

    @property
    def smallest(self) -> int | None:
        """Of all ways; None: none fits."""
        return min((way.smallest for way in self.ways if way.smallest is not None), default=None)

    @property
    def best(self) -> Way | None:
        """The first way that fits on so few GPUs."""
        return next((way for way in self.ways if way.smallest is not None and way.smallest == self.smallest), None)

    @property
    def estimate(self) -> Estimate | None:
        """Of the smallest number that fits; if none does, None."""
        return None if self.best is None else self.point(self.best).estimate

    def point(self, way: Way) -> Point:
        """Of the smallest number with which the way fits."""
        values = (str(way.smallest), *way.values)
        return next(point for point in self.sweep.points if point.values == values)


def scale(
    job: Job,
    grid: Sequence[tuple[Knob, Sequence[str]]] = (),
    *,
    sizes: Sequence[int] | None = None,
    low: int = 1,
    high: int = MOST_GPUS,
    is_request: bool = False,
    finds_need: bool = True,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
    on_point: Callable[[Sequence[Knob], Point], None] = lambda knobs, point: None,
) -> Scale:
    """Search for the smallest number of GPUs in `low` to `high` with each combination of the values of other knobs.
    With `sizes`, all of these are run, and no others; with `is_request`, what to request from a scheduler must fit as
    well."""
    if grid:
        check_grid(grid)
    candidates = sorted(set(sizes)) if sizes else sizes_between(low, high, job.gpus_per_node or GPUS_PER_NODE)
    for size in candidates:
        check_size(size)
    knobs = (WorldSize(), *(observe(job, say=say)[0] if isinstance(knob, LoaderBatch) else knob for knob, _ in grid))
    combinations = list(itertools.product(*(values for _, values in grid)))
    available = job.available_bytes
    ways = {
        values: _Search(candidates, available, runs_all=bool(sizes), is_request=is_request) for values in combinations
    }
    with Points(job, knobs, finds_need=finds_need, workers=workers, say=say, on_point=on_point) as points:
        found: list[Point] = []
        while wanted := [(str(size), *values) for values, search in ways.items() for size in search.wanted()]:
            for point in points.run(wanted):
                found.append(point)
                ways[point.values[1:]].known[int(point.values[0])] = point
        points.refuse_failures(found)
    found.sort(key=lambda point: (combinations.index(point.values[1:]), int(point.values[0])))
    sweep = Sweep(job=job, knobs=knobs, points=tuple(found))
    return Scale(sweep=sweep, ways=tuple(search.way(values) for values, search in ways.items()))


def sizes_between(low: int, high: int, per_node: int) -> list[int]:
    """Powers of two of the GPUs of one machine, then whole machines."""
    if not 1 <= low <= high <= MOST_RANKS:
        raise UsageError(f"--min {low} --max {high}: must be 1 to {MOST_RANKS}, and --min at most --max.")
    parts = {1 << power for power in range(per_node.bit_length())}
    found = [size for size in sorted({*parts, *range(per_node, high + 1, per_node)}) if low <= size <= high]
    return found or [low]


class _Search:
    """Of one way. `known` is filled by the caller."""

    def __init__(
        self, candidates: Sequence[int], available_bytes: int, *, runs_all: bool, is_request: bool
    ) -> None:
        self._candidates = candidates
        self._available_bytes = available_bytes
        self._runs_all = runs_all
        self._is_request = is_request
        self._ladder = list(candidates) if runs_all else list(_doubling(candidates))
        self.known: dict[int, Point] = {}

    def wanted(self) -> list[int]:
        """The next numbers to try; none: the answer is known."""
        climbed = [size for size in self._ladder if size in self.known]
        left = self._ladder[len(climbed) :]
        if self._runs_all:
            return left
        if left and not (self._fitting() or self._is_hopeless() or self._is_failing()):
            return left[:2]
        between = self._between()
        return [between[len(between) // 2]] if between else []

    def _fitting(self) -> list[int]:
        return sorted(size for size, point in self.known.items() if self._fits(point))

    def _fits(self, point: Point) -> bool:
        return point.verdict == "fits" and not (self._is_request and is_tight(point, self._available_bytes))

    def _is_too_few(self, point: Point) -> bool:
        return point.verdict != "failed" and not self._fits(point)

    def _between(self) -> list[int]:
        """Numbers that may be the answer: below the smallest that fits, above the largest below that that does not."""
        if self._runs_all or not self._fitting():
            return []
        smallest = self._fitting()[0]
        below = {size: point for size, point in self.known.items() if size < smallest}
        too_few = max((size for size, point in below.items() if self._is_too_few(point)), default=0)
        within = [size for size in self._candidates if too_few < size < smallest]
        failed = [size for size in within if size in self.known]
        return [] if len(failed) >= _MOST_FAILURES else [size for size in within if size not in self.known]

    def _is_hopeless(self) -> bool:
        """Whether no number of GPUs can be enough, by the last two: what does not shrink with their number is too
        much."""
        return self._left_with_any() > _MARGIN * self._available_bytes

    def _is_failing(self) -> bool:
        verdicts = [point.verdict for point in self.known.values()]
        return len(verdicts) >= _MOST_FAILURES_AT_FIRST and set(verdicts) == {"failed"}

    def _left_with_any(self) -> float:
        needs = [(size, need) for size, point in sorted(self.known.items()) if (need := point.device_bytes) is not None]
        if len(needs) < 2 or needs[-2][0] < 2:  # a single GPU has no NCCL and shards nothing
            return 0.0
        (fewer, first), (more, second) = needs[-2:]
        return second - max(0, first - second) / (more / fewer - 1)

    def way(self, values: tuple[str, ...]) -> Way:
        fitting = self._fitting()
        smallest = fitting[0] if fitting else None
        return Way(values=values, smallest=smallest, why=self._why(smallest))

    def _why(self, smallest: int | None) -> str:
        tried = sorted(self.known)
        if smallest is None:
            if all(point.verdict == "failed" for point in self.known.values()):
                return f"the script fails with every number from {tried[0]:,} to {tried[-1]:,} that was tried"
            if not self._runs_all and self._is_hopeless():
                return f"more than {tried[-1]:,} would not help, because most of the memory does not shrink with them"
            return f"no number up to {tried[-1]:,} fits"
        below = [size for size in tried if size < smallest]
        if not below:
            return "no smaller number was tried"
        verdict = "does not fit" if self._is_too_few(self.known[below[-1]]) else "fails"
        return f"with {below[-1]:,} it {verdict}"


def is_tight(point: Point, available_bytes: int) -> bool:
    """It fits, but what to request from a scheduler does not."""
    return point.verdict == "fits" and point.request_bytes is not None and point.request_bytes > available_bytes


def _doubling(candidates: Iterable[int]) -> Iterable[int]:
    """Each at least twice the one before; the last candidate ends it."""
    last = 0
    ordered = list(candidates)
    for size in ordered:
        if size >= 2 * last or size == ordered[-1]:
            last = size
            yield size
