"""The intervals of answers, by the constants that ship or by others, and the fit of these constants.

A fit is conformal: of the part of each error that no other cause explains, in units of a `Spread`, it takes a quantile.
A job to come may be of a family (an architecture, in one campaign) that nobody measured, so each family in turn is left
out, and the bounds are stretched until they hold for the families left out. `held_out` judges each campaign, or each
family, by a fit without it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Literal

from foretell.evaluation.records import Answer, Case
from foretell.records import Cause, Evidence
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which part of the runs is to hold."""

    inside: float = 0.95
    inside_in_sets: float = 0.94
    """Of each set with enough runs."""
    requested: float = 0.99
    requested_in_sets: float = 0.985


_WANTED = _Wanted()
_WANTED_UNRECORDED = _Wanted(inside=0.94, requested=0.97, requested_in_sets=0.97)
"""Of runs whose scripts nobody recorded, some were of another kind: in one case, three times what is estimated."""
MOST_STRETCHED = 1.5
"""Of a few families, the furthest run tells little about the tail of others."""
_NUM_FOLDS = 16
_LEANS = (1 / 3, 1.0, 3.0)
"""How much further bounds reach above than below."""
_TIMES = (0.3, 1.0, 3.0)
# Few, since the best of many fits only the runs at hand.
_SHAPES = [Spread(mib=8.0, of_reserved=part) for part in (0.005, 0.02, 0.05)]
_SHAPES_OF: dict[str, list[Spread]] = {
    "plain": [Spread(mib=16.0, of_reserved=part) for part in (0.005, 0.02)],
    VARYING: [*_SHAPES, *(replace(shape, of_lengths=times) for shape in _SHAPES for times in _TIMES)],
    "asked": [
        each
        for shape in _SHAPES for times in _TIMES
        for each in (replace(shape, of_alike=times), replace(shape, of_workspaces=times))
    ],
    "ruled": [
        replace(shape, of_workspaces=times, of_sums=sums)
        for shape in _SHAPES for times in _TIMES for sums in (0.0, times)
    ],
    "unruled": _SHAPES,
    UNRECORDED: [replace(shape, of_workspaces=times) for shape in _SHAPES for times in (0.0, *_TIMES)],
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    set: str
    group: str
    torch: str
    measured_bytes: int
    evidence: Evidence
    beyond_bytes: int
    """What other causes do not explain of measured - estimated."""


@dataclass(frozen=True, slots=True)
class _Score:
    value: float
    """How far the run is beyond other causes, in units of a shape."""
    set: str
    group: str
    weight: float = 1.0


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
    above = remainder.above.bytes_for(evidence, "above")
    return Cause(
        name="script",
        below_bytes=remainder.below.bytes_for(evidence, "below"),
        above_bytes=above,
        request_bytes=max(above, remainder.request.bytes_for(evidence, "above")),
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

    everything = fit(cases, answers)

    def fit_without(group: str) -> Remainders:
        own = [(case, answers[case.key]) for case in cases if group_of(case) == group]
        own = [(case, answer) for case, answer in own if _is_usable(case, answer)]
        others = [case for case in cases if group_of(case) != group]
        return fit(others, answers, kinds={_kind(*each) for each in own}, of_other_kinds=everything)

    fits = {group: fit_without(group) for group in set(map(group_of, cases))}
    return lambda case: fits[group_of(case)]


def _kind(case: Case, answer: Answer) -> str:
    """That the run helps to calibrate."""
    return kind_of(_evidence(case, answer.evidence)) if case.is_script_known else UNRECORDED


def fit(
    cases: Iterable[Case],
    answers: Mapping[str, Answer],
    *,
    kinds: Collection[str] = KINDS,
    of_other_kinds: Remainders | None = None,
) -> Remainders:
    """The constants of these kinds, where there are enough runs; those that ship, where not. The runs whose scripts
    were not recorded come last: of them only the rest is fitted that the other constants leave."""
    shipped = remainders()
    found = dict(of_other_kinds or shipped)
    usable = [(case, answers[case.key]) for case in cases if _is_usable(case, answers.get(case.key))]
    for kind in (kind for kind in KINDS if kind in kinds):
        own = [(case, answer) for case, answer in usable if _kind(case, answer) == kind]
        runs = [_run(case, answer, {**found, kind: _NOTHING}) for case, answer in own]
        wanted = _WANTED_UNRECORDED if kind == UNRECORDED else _WANTED
        found[kind] = _fitted(runs, _SHAPES_OF[kind], wanted) or shipped[kind]
    if not found["asked"].runs:  # nobody has measured runs with a cuDNN that can be asked
        found["asked"] = replace(found["ruled"], runs=0, groups=0)
    return found


def _is_usable(case: Case, answer: Answer | None) -> bool:
    has_number = answer is not None and answer.evidence is not None and not answer.is_oom and not answer.problem
    return has_number and case.has_memory and not case.is_oom and not case.is_in_doubt and case.quantity == "device"


_ZERO = Spread(mib=0.0, of_reserved=0.0)
_NOTHING = Remainder(below=_ZERO, above=_ZERO, request=_ZERO)


def _run(case: Case, answer: Answer, calibrated: Remainders) -> _Run:
    causes = causes_for(case, answer, calibrated)
    below, above = sum(each.below_bytes for each in causes), sum(each.above_bytes for each in causes)
    error = case.measured_bytes - answer.num_bytes
    return _Run(
        set=case.set,
        group=case.family,
        torch=answer.torch,
        measured_bytes=case.measured_bytes,
        evidence=_evidence(case, answer.evidence),
        beyond_bytes=error - max(-below, min(above, error)),
    )


def _fitted(runs: Sequence[_Run], shapes: Sequence[Spread], wanted: _Wanted) -> Remainder | None:
    """Of all shapes those with the narrowest interval, and the lowest request, in the median."""
    if len(runs) < FEWEST_RUNS:
        return None

    def width(below: Spread, above: Spread) -> float:
        """Relative to the measured value: the median of each set, and the mean of the sets."""
        sizes = []
        for run in runs:
            size = below.bytes_for(run.evidence, "below") + above.bytes_for(run.evidence, "above")
            sizes.append((run.set, size / run.measured_bytes))
        return statistics.fmean([statistics.median(values) for values in _by_set(sizes)])

    bounds = [_interval(runs, shape, lean, wanted) for shape in shapes for lean in _LEANS]
    below, above = min(bounds, key=lambda both: width(*both))
    request = min((_request(runs, shape, wanted) for shape in shapes), key=lambda spread: width(_ZERO, spread))
    groups, versions = {run.group for run in runs}, {run.torch for run in runs}
    torch = ", ".join(sorted(versions))
    return Remainder(below=below, above=above, request=request, runs=len(runs), groups=len(groups), torch=torch)


def _interval(runs: Sequence[_Run], shape: Spread, lean: float, wanted: _Wanted) -> tuple[Spread, Spread]:
    """Below and above."""
    down, up = 1 / math.sqrt(lean), math.sqrt(lean)
    scores = []
    for run in runs:
        score = _in_units(run, shape)
        scores.append(max(-score / down, score / up))
    factor = _factor(_weighted(runs, scores), wanted.inside, wanted.inside_in_sets)
    return _times(shape, factor * down), _times(shape, factor * up)


def _request(runs: Sequence[_Run], shape: Spread, wanted: _Wanted) -> Spread:
    scores = [max(0.0, _in_units(run, shape)) for run in runs]
    factor = _factor(_weighted(runs, scores), wanted.requested, wanted.requested_in_sets)
    return _times(shape, factor)


def _in_units(run: _Run, shape: Spread) -> float:
    return run.beyond_bytes / shape.bytes_for(run.evidence, "above" if run.beyond_bytes > 0 else "below")


def _weighted(runs: Sequence[_Run], values: Sequence[float]) -> list[_Score]:
    """With weights between two extremes: that every run, and that every family counts the same."""
    sizes = Counter(run.group for run in runs)
    return [
        _Score(value, run.set, run.group, 1 / math.sqrt(sizes[run.group]))
        for run, value in zip(runs, values, strict=True)
    ]


def _factor(scores: Sequence[_Score], part: float, part_of_sets: float) -> float:
    """How many units hold for this part of the runs, and for that part of each set, of families that were left out."""
    beyond = _beyond_other_families(scores, part)
    needed = [_quantile(beyond, part)]
    for values in _by_set([(score.set, score.value) for score in beyond]):
        needed.append(sorted(values)[math.ceil(part_of_sets * len(values)) - 1])
    return _quantile(scores, part) * min(max(1.0, *needed), MOST_STRETCHED)


def _beyond_other_families(scores: Sequence[_Score], part: float) -> list[_Score]:
    """In units of what holds for this part of the other families. A family that is all of its set is never left out:
    nobody else has measured such runs."""
    families: dict[str, set[str]] = {}
    for score in scores:
        families.setdefault(score.set, set()).add(score.group)
    found = []
    names = sorted({score.group for score in scores})
    for left_out in (set(names[start::_NUM_FOLDS]) for start in range(min(_NUM_FOLDS, len(names)))):
        others = [score for score in scores if score.group not in left_out or len(families[score.set]) == 1]
        bound = _quantile(others, part) or 1e-9
        found += [replace(score, value=score.value / bound) for score in scores if score.group in left_out]
    return found


def _quantile(scores: Sequence[_Score], part: float) -> float:
    """The least value that holds for this part of the weight."""
    ordered = sorted(scores, key=lambda score: score.value)
    wanted = part * sum(score.weight for score in ordered) * (1 - 1e-9)
    sums = accumulate(score.weight for score in ordered)
    return next(score.value for score, sum_ in zip(ordered, sums, strict=True) if sum_ >= wanted)


def _by_set(values: Sequence[tuple[str, float]]) -> list[list[float]]:
    """Those of each set with enough runs; all together if there is none."""
    sets: dict[str, list[float]] = {}
    for name, value in values:
        sets.setdefault(name, []).append(value)
    large = [each for each in sets.values() if len(each) >= FEWEST_RUNS]
    return large or [[value for _, value in values]]


def _times(shape: Spread, factor: float) -> Spread:
    """Rounded up."""

    def up(value: float, digits: int) -> float:
        scale = float(10**digits)
        return math.ceil(round(value * scale, 6)) / scale

    return Spread(
        mib=up(factor * shape.mib, 1),
        of_reserved=up(factor * shape.of_reserved, 4),
        of_workspaces=up(factor * shape.of_workspaces, 3),
        of_sums=up(factor * shape.of_sums, 3),
        of_alike=up(factor * shape.of_alike, 3),
        of_lengths=up(factor * shape.of_lengths, 3),
    )


def render(calibrated: Remainders) -> str:
    """interval.toml."""
    parts = [
        "# Written by `make calibration`: what remains of measured minus estimated memory after the other causes of",
        "# rules/interval.py. Not edited by hand.",
    ]
    for kind in KINDS:
        remainder = calibrated[kind]
        parts += ["", f"[{kind}]"]
        for name in ("below", "above", "request"):
            spread: Spread = getattr(remainder, name)
            terms = ", ".join(f"{field.name} = {getattr(spread, field.name)}" for field in fields(spread))
            parts.append(f"{name} = {{{terms}}}")
        parts += [f"runs = {remainder.runs}", f"groups = {remainder.groups}", f'torch = "{remainder.torch}"']
    return "\n".join(parts) + "\n"

