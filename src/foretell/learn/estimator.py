"""foretell's learned estimator: the formula times a learned correction, with conformal intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

from foretell.errors import TraceError
from foretell.features import Guess, JobFeatures, Speed
from foretell.formulas.own import TERMS, Depth, Point, point_of
from foretell.formulas.workspaces import version_of
from foretell.learn import speed, trees
from foretell.learn.vectors import names, vector
from foretell.plain import from_plain
from foretell.records import Gpu
from foretell.versions import PLANNED_CONVOLUTIONS

SHIPPED = Path(__file__).parent / "models" / "reserved"
_LARGEST_CORRECTION = 1.2
"""As a logarithm: a factor of 3.3 either way. More would be a job that is nothing like those of the data set."""
_LARGEST_SPREAD = 5.0
"""As a logarithm: more is damage."""
OFFSET_BYTES = 512 << 20
"""Intervals are relative to the estimate and this: what is off by some blocks of the allocator does not shrink with a
small job, and what else is on the card is as large."""
_LARGE_WORKSPACE = 0.07
"""Of the estimate."""
STRATA = (
    "mlp", "transformer", "language", "cnn", "cnn-fitted", "cnn-fitted-large", "cnn-planned", "cnn-planned-large",
)  # fmt: skip
"""What `stratum` answers."""


@dataclass(frozen=True, eq=False)
class Learned:
    """Trees give log(truth / formula), so it extrapolates as the formula does."""

    models: dict[str, trees.Trees]
    """By depth."""
    card: dict[str, Any]
    fast: speed.Fast | None = None
    """For step time and utilization; None: the data set had none."""
    name: str = "guess"

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        return self.guess_all([(features, gpu)])[0]

    def guess_all(self, jobs: Sequence[tuple[JobFeatures, Gpu]]) -> list[Guess | None]:
        """None: neither the layers nor the parameters are known."""
        points = [point_of(job, gpu) if job.layers and job.parameter_bytes is not None else None for job, gpu in jobs]
        found: list[Guess | None] = [None] * len(jobs)
        speeds = [None] * len(jobs) if self.fast is None else self.fast.guess_all(jobs)
        for depth, model in self.models.items():
            chosen = [(i, point) for i, point in enumerate(points) if point is not None and point.depth == depth]
            if not chosen:
                continue
            corrections = model.predict([vector(*jobs[i], point) for i, point in chosen])
            for (i, point), correction in zip(chosen, corrections.tolist(), strict=True):
                found[i] = self._guess(jobs[i][0], point, correction, speeds[i])
        return found

    def _guess(self, features: JobFeatures, point: Point, correction: float, speed: Speed | None) -> Guess:
        bounded = max(-_LARGEST_CORRECTION, min(_LARGEST_CORRECTION, correction))
        factor = self.card.get("factors", {}).get(point.group, 1.0)
        reserved = max(int(point.formula_bytes * exp(bounded) * factor), point.least_bytes)
        spread = self.card["spreads"][point.depth][stratum(features, point)]
        low, high, bound = (
            int((reserved + OFFSET_BYTES) * exp(spread[name])) - OFFSET_BYTES for name in ("low", "high", "bound")
        )
        return Guess(
            estimator=self.name,
            reserved_bytes=reserved,
            low_bytes=min(reserved, max(low, point.least_bytes)),
            high_bytes=max(reserved, high),
            bound_bytes=max(reserved, bound),
            notes=_notes(point.depth, features, bounded != correction),
            speed=speed,
        )


def stratum(features: JobFeatures, point: Point) -> str:
    """Jobs with errors of one kind: the group and, of CNNs, the rule that their workspaces are known by, and whether
    the largest is a large part of the whole."""
    if point.group != "cnn":
        return point.group
    rule = "planned" if PLANNED_CONVOLUTIONS.holds_in(version_of(features.torch_version)) else "fitted"
    if point.depth == "summary":
        return f"cnn-{rule}"
    largest = point.terms[TERMS["complete"].index("workspace")]
    return f"cnn-{rule}-large" if largest > _LARGE_WORKSPACE * point.formula_bytes else f"cnn-{rule}"


def _notes(depth: Depth, features: JobFeatures, is_bounded: bool) -> tuple[str, ...]:
    notes = []
    if depth == "summary":
        notes.append(
            "only layers and parameters are known, not what autograd saves: a guess from the model or the script is "
            "several times as accurate"
        )
    if features.optimizer is None:
        notes.append("the optimizer is not known and taken to be Adam")
    if features.is_checkpointed:
        notes.append(
            "activations are checkpointed, and what the backward pass computes again is not counted: the guess is too "
            "low; `foretell run` counts it"
        )
    if is_bounded:
        notes.append("the job is unlike those of the data set: its correction was limited")
    return tuple(notes)


def read(path: Path) -> Learned:
    """A model of `foretell train`; `path` with or without its suffix."""
    path = path.with_suffix("")
    arrays, card = trees.load(path)
    for name in arrays:
        expected = speed.NAMES if name in speed.TARGETS else names(name)  # type: ignore[arg-type]
        if list(card.get("features", {}).get(name, ())) != list(expected):
            raise TraceError(
                f"cannot use the model {path}: it was trained on other features than this foretell computes. Train it "
                "again with `foretell train`."
            )
    try:
        numbers = from_plain(_Numbers, {name: card[name] for name in ("spreads", "factors") if name in card})
        models = {depth: each for depth, each in arrays.items() if depth not in speed.TARGETS}
        if missing := [depth for depth in models if not set(STRATA) <= numbers.spreads.get(depth, {}).keys()]:
            raise ValueError(f"no spreads of {', '.join(missing)}")
        fast = _fast({name: each for name, each in arrays.items() if name in speed.TARGETS}, card.get("speed"))
    except ValueError as error:
        raise TraceError(f"cannot use the model {path}: its card is damaged: {error}.") from None
    return Learned(models, card, fast)


def _fast(models: dict[str, trees.Trees], given: Any) -> speed.Fast | None:
    if not models and given is None:
        return None
    if missing := set(speed.TARGETS) - models.keys():
        raise ValueError(f"no trees for {', '.join(sorted(missing))}")
    return speed.Fast(models, from_plain(speed.Numbers, given))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """Logarithms."""

    low: float
    high: float
    bound: float

    def __post_init__(self) -> None:
        assert max(abs(self.low), abs(self.high), abs(self.bound)) < _LARGEST_SPREAD, "a spread that is too wide"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """What of a card is computed with."""

    spreads: dict[str, dict[str, _Spread]]
    factors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert all(0 < each < exp(_LARGEST_SPREAD) for each in self.factors.values()), "a factor that is no factor"


@cache
def shipped() -> Learned:
    return read(SHIPPED)
