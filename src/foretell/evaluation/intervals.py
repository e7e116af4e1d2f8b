"""The intervals of answers, by the constants that ship or by others, and the fit of these constants.

A fit is conformal: of the part of each error that no other cause explains, in units of a `Spread`, it takes quantiles.
`held_out` judges each campaign, or each family (the runs of one
architecture), by a fit without it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

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

_Value = TypeVar("_Value", float, bool)
HoldOut = Literal["campaign", "family"]
FEWEST_RUNS = 30
"""With fewer, the constants stay as they are."""
COVERED, COVERED_IN_SETS, REQUESTED = 0.95, 0.92, 0.99
_OF_RESERVED = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
_SHAPES = [
    Spread(mib=mib, of_reserved=of_reserved) for mib in (4.0, 8.0, 16.0, 32.0, 64.0) for of_reserved in _OF_RESERVED
]
_SHAPES_OF_CONVOLUTIONS = [
    replace(shape, of_workspaces=of_workspaces, of_sums=of_sums)
    for shape in _SHAPES
    for of_workspaces, of_sums in ((0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (1.0, 0.0), (3.0, 0.0), (0.0, 1.0), (0.1, 1.0))
]
_SHAPES_OF_LENGTHS = [replace(shape, of_lengths=times) for shape in _SHAPES for times in (0.0, 0.1, 0.3, 1.0, 3.0)]
_SHAPES_OF = dict.fromkeys(CONVOLUTION_KINDS, _SHAPES_OF_CONVOLUTIONS) | {
    "plain": _SHAPES, VARYING: _SHAPES_OF_LENGTHS, UNRECORDED: _SHAPES_OF_CONVOLUTIONS
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
    """What is beyond other causes, in units of a shape."""
    set: str
    group: str


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
        found[kind] = _fitted(runs, _SHAPES_OF[kind]) or shipped[kind]
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
        torch=answer.torch,
        measured_bytes=case.measured_bytes,
        evidence=_evidence(case, answer.evidence),
        beyond_bytes=error - max(-below, min(above, error)),
    )


def _fitted(runs: Sequence[_Run], shapes: Sequence[Spread]) -> Remainder | None:
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

    below, above = min((_interval(runs, shape) for shape in shapes), key=lambda bounds: width(*bounds))
    request = min((_request(runs, shape) for shape in shapes), key=lambda spread: width(_ZERO, spread))
    groups, versions = {run.group for run in runs}, {run.torch for run in runs}
    torch = ", ".join(sorted(versions))
    return Remainder(below=below, above=above, request=request, runs=len(runs), groups=len(groups), torch=torch)


def _interval(runs: Sequence[_Run], shape: Spread) -> tuple[Spread, Spread]:
    """Below and above; the runs outside are divided between the two so that it is narrowest. For at least COVERED of
    the runs, and so many more that COVERED_IN_SETS of each set are inside bounds that their family has no part in."""
    scores = sorted(
        (_Score(_in_units(run, shape), run.set, run.group) for run in runs),
        key=lambda each: each.value,
    )
    least = math.ceil(COVERED * len(scores))
    num = next((num for num in range(least, len(scores)) if _holds_elsewhere(scores, len(scores) - num)), len(scores))
    below, above = _narrowest([score.value for score in scores], len(scores) - num)
    return _times(shape, below), _times(shape, above)


def _holds_elsewhere(scores: Sequence[_Score], num_outside: int) -> bool:
    """Whether bounds with so few runs outside hold for families that have no part in them. A family that is all of its
    set has a part: nobody else has measured such runs."""
    families: dict[str, set[str]] = {}
    for score in scores:
        families.setdefault(score.set, set()).add(score.group)
    inside: list[tuple[str, bool]] = []
    for group in {score.group for score in scores}:
        own = [score for score in scores if score.group == group]
        is_alone = any(families[score.set] == {group} for score in own)
        others = [score.value for score in scores if score.group != group or is_alone]
        below, above = _narrowest(others, min(num_outside, len(others) - 1))
        inside += [(score.set, -below <= score.value <= above) for score in own]
    return all(statistics.fmean(held) >= COVERED_IN_SETS for held in _by_set(inside))


def _by_set(values: Sequence[tuple[str, _Value]]) -> list[list[_Value]]:
    """Those of each set with enough runs; all together if there is none."""
    sets: dict[str, list[_Value]] = {}
    for name, value in values:
        sets.setdefault(name, []).append(value)
    large = [each for each in sets.values() if len(each) >= FEWEST_RUNS]
    return large or [[value for _, value in values]]


def _narrowest(scores: Sequence[float], num_outside: int) -> tuple[float, float]:
    """How far below and above all but so many of the sorted scores lie, with the fewest units."""
    windows = zip(scores, scores[len(scores) - num_outside - 1 :], strict=False)
    bounds = [(max(0.0, -low), max(0.0, high)) for low, high in windows]
    return min(bounds, key=lambda pair: pair[0] + pair[1])


def _in_units(run: _Run, shape: Spread) -> float:
    return run.beyond_bytes / shape.bytes_for(run.evidence, "above" if run.beyond_bytes > 0 else "below")


def _request(runs: Sequence[_Run], shape: Spread) -> Spread:
    scores = sorted(_in_units(run, shape) for run in runs)
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
        of_sums=up(factor * shape.of_sums, 3),
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

