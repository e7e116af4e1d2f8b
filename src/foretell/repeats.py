"""`--interval simulated`: a job is run again with other choices, each of which a real run may make, to see how far its
own peak moves.

The runs are forks of a warm process. The first repeats the job unchanged; the others are compared with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from foretell import api
from foretell.analysis.caveats import decides_a_size
from foretell.errors import ForetellError
from foretell.jobs import Job
from foretell.records import Estimate, Repeat, RepeatKind
from foretell.rules import widened
from foretell.rules.interval import causes_of, with_repeats
from foretell.runs import Warm
from foretell.trace import Trace
from foretell.units import format_bytes

Again = Callable[[Job], int]
"""The reserved peak of a job. Raises a `ForetellError` if there is none."""
_ORDERS = 3
_LEAST_SECONDS = 0.5
"""Nothing is started with less time left."""


@dataclass(frozen=True, slots=True)
class _Choice:
    kind: RepeatKind
    name: str
    job: Job


def simulated(
    run: api.Run,
    estimate: Estimate,
    *,
    say: Callable[[str], None] = lambda text: None,
    again: Again | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Estimate:
    """The estimate with an interval from repeated runs, which take at most as long as the first one did."""
    why_not = _why_not(run, estimate)
    if why_not:
        return _with_caveat(estimate, f"the interval was not simulated: {why_not}")
    choices = list(_choices(run, estimate))
    if not choices:
        say("nothing to simulate: no convolutions, other streams, shuffled batches or unknown sizes")
        return estimate
    evidence, deadline = estimate.evidence, clock() + run.trace.seconds["total"]
    assert evidence is not None
    repeats: list[Repeat] = []
    left = [choice.name for choice in choices]
    with Warm() as warm:
        ask = again or (lambda job: _reserved_bytes(job, warm))

        def peak(job: Job) -> int | None:
            seconds = deadline - clock()
            if seconds < _LEAST_SECONDS:
                raise TimeoutError
            limit = min(seconds, job.options.timeout_seconds or seconds)
            try:
                return ask(replace(job, options=replace(job.options, timeout_seconds=limit)))
            except ForetellError:
                return None

        try:
            base = peak(_quiet(run.job))
            for choice in choices if base is not None else ():
                found = peak(choice.job)
                left.remove(choice.name)
                if found is not None and base is not None:
                    say(f"{choice.name}: {format_bytes(found)} reserved instead of {format_bytes(base)}")
                    repeats.append(Repeat(kind=choice.kind, name=choice.name, moved_bytes=found - base))
        except (TimeoutError, api.Interrupted):
            pass
    if left:
        estimate = _with_caveat(estimate, f"the interval was simulated without: {', '.join(left)} (no time left)")
    evidence = with_repeats(evidence, tuple(repeats))
    causes = causes_of(evidence)
    return replace(estimate, evidence=evidence, causes=causes, peak=widened(estimate.peak, causes))


def _why_not(run: api.Run, estimate: Estimate) -> str | None:
    if estimate.oom is not None:
        return "the job runs out of memory"
    if not estimate.complete:
        return "the run is incomplete"
    if estimate.evidence is None:
        return "nothing is known about its causes"
    return "it has several ranks" if run.trace.other_ranks else None


def _choices(run: api.Run, estimate: Estimate) -> Iterator[_Choice]:
    """What a real run may do otherwise, as far as this job leaves it open."""
    job, evidence = _quiet(run.job), estimate.evidence
    options = job.options
    assert evidence is not None

    def other(kind: RepeatKind, name: str, **changes: object) -> _Choice:
        return _Choice(kind, name, replace(job, options=replace(options, **changes)))  # type: ignore[arg-type]

    has_orders = estimate.batches is not None and estimate.batches.num_shapes > 1 and options.steps != "worst"
    orders = [
        other("order", f"batches shuffled with seed {seed}", alternatives=(*options.alternatives, f"shuffle={seed}"))
        for seed in range(1, _ORDERS + 1)
        if has_orders
    ]
    yield from orders[:1]
    if evidence.kind != "plain" and options.workspaces == "asked":
        yield other("workspaces", "--workspaces next", workspaces="next")
        yield other("workspaces", "--workspaces none", workspaces="none")
    if evidence.waiting_bytes and options.events == "late":
        yield other("events", "--events early", events="early")
    if _has_sizes_assumed(run.trace) and options.assume == "typical":
        yield other("values", "--assume low", assume="low")
        yield other("values", "--assume high", assume="high")
    yield from orders[1:]


def _has_sizes_assumed(trace: Trace) -> bool:
    return any(decides_a_size(read.what) for read in trace.unknown_reads)


def _quiet(job: Job) -> Job:
    return replace(job, options=replace(job.options, stdout="file", attribution=False, time=False))


def _reserved_bytes(job: Job, warm: Warm) -> int:
    estimate = api.run(job, warm=warm).complete_estimate
    if estimate.oom is not None:
        raise ForetellError("it runs out of memory")
    return estimate.peak.reserved_bytes


def _with_caveat(estimate: Estimate, text: str) -> Estimate:
    return replace(estimate, caveats=(*estimate.caveats, text))
