"""The intervals of answers, by the constants that ship or by others, and the fit of these constants.

A fit is conformal: of the part of each error that no other cause explains, in units of a `Spread`, it takes quantiles.
`held_out` judges each campaign, or each family (the runs of one
architecture), by a fit without it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from foretell.evaluation.records import Answer, Case
from foretell.records import CONVOLUTION_KINDS, Cause, Evidence
from foretell.rules.interval import (
    KINDS,
    UNRECORDED,
    VARYING,
    Remainder,
    Remainders,
    Spread,
    causes_of,
    kind_of,
    remainders,
)

HoldOut = Literal["campaign", "family"]
FEWEST_RUNS = 30
"""With fewer, the constants stay as they are."""
COVERED, COVERED_IN_SETS, REQUESTED = 0.95, 0.92, 0.99
_MORE = (0.96, 0.97, 0.98, 0.99)
_SHAPES = [
    Spread(mib=mib, of_reserved=of_reserved, of_workspaces=of_workspaces)
    for mib in (4.0, 8.0, 16.0, 32.0, 64.0)
    for of_reserved in (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
    for of_workspaces in (0.0, 0.1, 0.3, 1.0, 3.0)
]
_SHAPES_OF_LENGTHS = [replace(shape, of_workspaces=0.0, of_lengths=shape.of_workspaces) for shape in _SHAPES]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    set: str
    group: str
    measured_bytes: int
    evidence: Evidence
    beyond_bytes: int
    """What other causes do not explain of measured - estimated."""


def causes_for(case: Case, answer: Answer, calibrated: Remainders | None = None) -> tuple[Cause, ...]:
    """Those of the run, and the unknowns of the measured one. PyTorch's own peak has none."""
    if answer.evidence is None or case.quantity == "allocated":
        return ()
    known, evidence = calibrated or remainders(), _evidence(case, answer.evidence)
    causes = causes_of(evidence, known)
    return causes if case.is_script_known else (*causes, _script(known[UNRECORDED], evidence))


def _evidence(case: Case, evidence: Evidence | None) -> Evidence:
    """The batches of a run with draws are not known, even if all draws come out alike."""
    assert evidence is not None
    return replace(evidence, are_lengths_unknown=True) if case.draws else evidence


def _script(remainder: Remainder, evidence: Evidence) -> Cause:
    above = remainder.above.bytes_for(evidence)
    return Cause(
        name="script",
        below_bytes=remainder.below.bytes_for(evidence),
        above_bytes=above,
        request_bytes=max(above, remainder.request.bytes_for(evidence)),
        why="how the model was trained was not recorded",
    )


def held_out(
    cases: Sequence[Case], answers: Mapping[str, Answer], hold_out: HoldOut | None
) -> Callable[[Case], Remainders]:
    """The constants by which each case is judged: the shipped ones, or ones that its campaign or family has no part
    in."""
    if hold_out is None:
        return lambda case: remainders()

    def group_of(case: Case) -> str:
        return case.campaign if hold_out == "campaign" else case.family

    fits = {
        group: fit([case for case in cases if group_of(case) != group], answers) for group in set(map(group_of, cases))
    }
    return lambda case: fits[group_of(case)]


def fit(cases: Iterable[Case], answers: Mapping[str, Answer]) -> Remainders:
    """The constants of every kind of which there are enough runs; of the others, those that ship."""
    found = dict(remainders())
    usable = [(case, answers[case.key]) for case in cases if _is_usable(case, answers.get(case.key))]
    for kind in (*CONVOLUTION_KINDS, VARYING):
        runs = [
            _run(case, answer, {**found, kind: _NOTHING})
            for case, answer in usable
            if case.is_script_known and kind_of(_evidence(case, answer.evidence)) == kind
        ]
        found[kind] = _fitted(runs, _SHAPES_OF_LENGTHS if kind == VARYING else _SHAPES) or found[kind]
    runs = [_run(case, answer, {**found, UNRECORDED: _NOTHING}) for case, answer in usable if not case.is_script_known]
    found[UNRECORDED] = _fitted(runs, _SHAPES) or found[UNRECORDED]
    if not found["asked"].runs:  # nobody has measured runs with a cuDNN that can be asked
        found["asked"] = replace(found["ruled"], runs=0, groups=0)
    return found


def _is_usable(case: Case, answer: Answer | None) -> bool:
    has_number = answer is not None and answer.evidence is not None and not answer.is_oom and not answer.problem
    return has_number and case.has_memory and not case.is_oom and case.quantity == "device"


_ZERO = Spread(mib=0.0, of_reserved=0.0)
_NOTHING = Remainder(below=_ZERO, above=_ZERO, request=_ZERO)


def _run(case: Case, answer: Answer, calibrated: Remainders) -> _Run:
    causes = causes_for(case, answer, calibrated)
    below, above = sum(each.below_bytes for each in causes), sum(each.above_bytes for each in causes)
    error = case.measured_bytes - answer.num_bytes
    return _Run(
        set=case.set,
        group=case.family,
        measured_bytes=case.measured_bytes,
        evidence=_evidence(case, answer.evidence),
        beyond_bytes=error - max(-below, min(above, error)),
    )


def _fitted(runs: Sequence[_Run], shapes: Sequence[Spread]) -> Remainder | None:
    """Of all shapes those with the narrowest interval, and the lowest request, in the median."""
    if len(runs) < FEWEST_RUNS:
        return None

    def width(*spreads: Spread) -> float:
        """Relative to the measured value: the median of each set, and the mean of the sets."""
        sizes = [
            (run.set, sum(spread.bytes_for(run.evidence) for spread in spreads) / run.measured_bytes) for run in runs
        ]
        return statistics.fmean([statistics.median(values) for values in _by_set(sizes)])

    below, above = min((_interval(runs, shape) for shape in shapes), key=lambda bounds: width(*bounds))
    request = min((_request(runs, shape) for shape in shapes), key=width)
    groups = {run.group for run in runs}
    return Remainder(below=below, above=above, request=request, runs=len(runs), groups=len(groups))


def _interval(runs: Sequence[_Run], shape: Spread) -> tuple[Spread, Spread]:
    """Below and above; the runs outside are divided between the two so that it is narrowest. It holds for COVERED of
    all runs, and for COVERED_IN_SETS of each set."""
    scores = sorted((run.beyond_bytes / shape.bytes_for(run.evidence), run.set) for run in runs)
    sets = _by_set([(name, score) for score, name in scores])
    for covered in (COVERED, *_MORE):
        below, above = _narrowest([score for score, _ in scores], covered)
        if all(_held(values, below, above) >= COVERED_IN_SETS for values in sets):
            break
    return _times(shape, below), _times(shape, above)


def _by_set(values: Sequence[tuple[str, float]]) -> list[list[float]]:
    """Those of each set with enough runs; all together if there is none."""
    sets: dict[str, list[float]] = {}
    for name, value in values:
        sets.setdefault(name, []).append(value)
    large = [each for each in sets.values() if len(each) >= FEWEST_RUNS]
    return large or [[value for _, value in values]]


def _narrowest(scores: Sequence[float], covered: float) -> tuple[float, float]:
    """How far below and above so many of the sorted scores lie, with the fewest units."""
    num = math.ceil(covered * len(scores))
    windows = zip(scores, scores[num - 1 :], strict=False)
    bounds = [(max(0.0, -low), max(0.0, high)) for low, high in windows]
    return min(bounds, key=lambda pair: pair[0] + pair[1])


def _held(scores: Sequence[float], below: float, above: float) -> float:
    return sum(-below <= score <= above for score in scores) / len(scores)


def _request(runs: Sequence[_Run], shape: Spread) -> Spread:
    scores = sorted(run.beyond_bytes / shape.bytes_for(run.evidence) for run in runs)
    return _times(shape, max(0.0, scores[math.ceil(REQUESTED * len(scores)) - 1]))


def _times(shape: Spread, factor: float) -> Spread:
    """Rounded up."""

    def up(value: float, digits: int) -> float:
        scale = float(10**digits)
        return math.ceil(round(value * scale, 6)) / scale

    return Spread(
        mib=up(factor * shape.mib, 1),
        of_reserved=up(factor * shape.of_reserved, 4),
        of_workspaces=up(factor * shape.of_workspaces, 3),
        of_lengths=up(factor * shape.of_lengths, 3),
    )


def render(calibrated: Remainders, *, about: str) -> str:
    """interval.toml."""
    parts = [
        "# Written by `make calibration`: what remains of measured minus estimated memory after the other causes of",
        "# rules/interval.py. Not edited by hand.",
        f"# {about}",
    ]
    for kind in KINDS:
        remainder = calibrated[kind]
        parts += ["", f"[{kind}]"]
        for name in ("below", "above", "request"):
            spread: Spread = getattr(remainder, name)
            terms = ", ".join(f"{field.name} = {getattr(spread, field.name)}" for field in fields(spread))
            parts.append(f"{name} = {{{terms}}}")
        parts += [f"runs = {remainder.runs}", f"groups = {remainder.groups}"]
    return "\n".join(parts) + "\n"

