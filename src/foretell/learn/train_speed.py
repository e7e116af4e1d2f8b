"""Trains the estimator of step time and utilization (`speed.py`) on labels of the time model, and fits its intervals to
these and to measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, Any

from foretell import gpus
from foretell.errors import UsageError
from foretell.features import JobFeatures, Speed
from foretell.formulas import speed as formula
from foretell.formulas.speed import BUSY, HOST, SpeedPoint
from foretell.learn import speed, trees
from foretell.learn.fit import fit_coefficients
from foretell.learn.speed import NAMES, STRATA, TARGETS, Fast, Numbers, Spread, Target
from foretell.learn.spreads import MEASURED, Residual, interval
from foretell.learn.train import FOLDS, fold_of, lightgbm
from foretell.records import Gpu

if TYPE_CHECKING:
    from foretell.learn.dataset import Row, Timing

FEWEST_LABELS = 100
_PARAMETERS = {
    "objective": "l1", "learning_rate": 0.1, "num_leaves": 10, "max_depth": 4, "min_data_in_leaf": 15, "lambda_l2": 1.0,
    "feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1, "verbosity": -1, "num_threads": 1, "seed": 0,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ROUNDS = 40
_USUAL = (1.0, 1.0, 2.5, 2.5, 2.5, 2.5, 2.5)
"""Of a term: kernels reach two fifths to all of what a card sustains. So many of each that, of relative errors, none
pulls inwards or outwards between them."""
_NO_SPREAD: dict[str, dict[str, Spread]] = {
    name: {stratum: Spread(low=0.0, high=0.0) for stratum in STRATA} for name in TARGETS
}


@dataclass(frozen=True, slots=True)
class Timed:
    """A job on a card, and what its step takes there."""

    features: JobFeatures
    gpu: Gpu
    timing: Timing
    group: str
    source: str
    """`virtual`, or the set of a measured run."""


@dataclass(frozen=True, eq=False)
class TrainedSpeed:
    fast: Fast
    """Without intervals."""
    residuals: dict[Target, list[Residual]]
    """Of jobs and architectures that were held out."""
    scores: dict[str, float]


def timed(rows: Sequence[Row]) -> list[Timed]:
    """One for each card of each row whose work is known."""
    return [
        Timed(row.features, gpus.find(card), timing, row.group, row.source)
        for row in rows
        for card, timing in row.times.items()
        if row.features.work is not None
    ]


def train(rows: Sequence[Timed]) -> TrainedSpeed | None:
    """None: the data set has no times."""
    if not rows:
        return None
    if len(rows) < FEWEST_LABELS:
        raise UsageError(
            f"the data set has {len(rows)} step times; at least {FEWEST_LABELS} are needed, or none. Generate more "
            "with `foretell dataset generate --times`."
        )
    np = trees.numpy()
    groups = np.array([fold_of(row.group) for row in rows])
    guesses: dict[int, Speed] = {}
    for fold in range(FOLDS):
        training = [row for row, number in zip(rows, groups, strict=True) if number != fold]
        tested = [i for i, number in enumerate(groups) if number == fold]
        if training and tested:
            fast = _trained(training)
            answers = fast.guess_all([(rows[i].features, rows[i].gpu) for i in tested])
            guesses |= {i: answer for i, answer in zip(tested, answers, strict=True) if answer is not None}
    fast = _trained(rows)
    residuals: dict[Target, list[Residual]] = {name: [] for name in TARGETS}
    for i, guess in guesses.items():
        _add_residuals(residuals, rows[i], guess, _stratum(fast, rows[i]), "labels")
    errors = [abs(exp(-log((rows[i].timing.step_ms or 0) / guess.step_ms)) - 1) for i, guess in guesses.items()]
    gract = [abs(guess.gract - (rows[i].timing.gract or 0.0)) for i, guess in guesses.items()]
    smact = [abs(guess.smact - (rows[i].timing.smact or 0.0)) for i, guess in guesses.items()]
    scores = {
        "rows": len(errors),
        "step_median": round(float(np.median(errors)), 4), "step_p90": round(float(np.quantile(errors, 0.9)), 4),
        "gract_mean": round(float(np.mean(gract)), 4), "smact_mean": round(float(np.mean(smact)), 4),
    }  # fmt: skip
    return TrainedSpeed(fast, residuals, scores)


def with_intervals(trained: TrainedSpeed, measured: Sequence[Timed]) -> Fast:
    """The intervals hold for labels and for measured runs."""
    residuals = {name: list(found) for name, found in trained.residuals.items()}
    fast = trained.fast
    for row, guess in zip(measured, fast.guess_all([(row.features, row.gpu) for row in measured]), strict=True):
        if guess is not None:
            _add_residuals(residuals, row, guess, _stratum(fast, row), f"{MEASURED}{row.source}")
    spreads: dict[str, dict[str, Spread]] = {
        name: {each: _spread(found, each) for each in STRATA} for name, found in residuals.items()
    }
    return Fast(fast.models, Numbers(coefficients=fast.numbers.coefficients, spreads=spreads))


def _trained(rows: Sequence[Timed]) -> Fast:
    np = trees.numpy()
    points = [_point(row) for row in rows]
    coefficients = {
        **_fitted(BUSY, [point.busy for point in points], [row.timing.busy_ms or 1e-3 for row in rows]),
        **_fitted(HOST, [point.host for point in points], [row.timing.host_ms or 1e-3 for row in rows]),
    }
    sums = [speed.parts(point, coefficients) for point in points]
    inputs = np.array(
        [
            speed.vector(row.features, row.gpu, point, *each)
            for row, point, each in zip(rows, points, sums, strict=True)
        ]
    )
    both = list(zip(rows, sums, strict=True))
    targets: dict[Target, list[float]] = {
        "step": [log((row.timing.step_ms or 1e-3) / formula.step_ms(*each)) for row, each in both],
        "gract": [(row.timing.gract or 0.0) - speed.plain_gract(*each) for row, each in both],
        "smact": [(row.timing.smact or 0.0) / max(1e-3, row.timing.gract or 0.0) for row in rows],
    }
    models: dict[str, trees.Trees] = {name: _boosted(inputs, np.array(values)) for name, values in targets.items()}
    return Fast(models, Numbers(coefficients=coefficients, spreads=_NO_SPREAD))


def _point(row: Timed) -> SpeedPoint:
    point = formula.point_of(row.features, row.gpu)
    assert point is not None, "a row without its work"
    return point


def _fitted(names: Sequence[str], terms: Sequence[Sequence[float]], truth: Sequence[float]) -> dict[str, float]:
    """As if there were also some jobs of each term alone: one that few jobs have stays within what is usual."""
    alone = [[float(at == other) for other in range(len(names))] for at in range(len(names))]
    found = fit_coefficients(
        [*terms, *alone * len(_USUAL)], [*truth, *(each for each in _USUAL for _ in names)]
    )
    return {name: float(f"{value:.4g}") for name, value in zip(names, found, strict=True)}


def _boosted(inputs: Any, target: Any) -> trees.Trees:
    library = lightgbm()
    data = library.Dataset(inputs, label=target, feature_name=list(NAMES))
    return trees.from_lightgbm(library.train(_PARAMETERS, data, num_boost_round=_ROUNDS))


def _stratum(fast: Fast, row: Timed) -> str:
    return speed.stratum(row.features, *fast.parts(_point(row)))


def _add_residuals(
    residuals: dict[Target, list[Residual]], row: Timed, guess: Speed, stratum: str, source: str
) -> None:
    """Of a label whose step waits for the host, also those of the ends of its interval: how fast that is, nobody knows.
    What the time model makes of kernels was compared with measured runs, and these are here."""
    timing = row.timing

    def add(target: Target, value: float) -> None:
        one = Residual(stratum=stratum, source=source, group=row.group, value=value)
        residuals[target].append(one)

    count = 1 if stratum == "gpu" else 3
    for truth in (timing.step_ms, timing.step_low_ms, timing.step_high_ms)[:count]:
        if truth:
            add("step", log(truth / guess.step_ms))
    shares: tuple[tuple[Target, float, tuple[float | None, ...]], ...] = (
        ("gract", guess.gract, (timing.gract, timing.gract_low, timing.gract_high)),
        ("smact", guess.smact, (timing.smact, timing.smact_low, timing.smact_high)),
    )
    for name, value, truths in shares:
        for truth in truths[:count]:
            if truth is not None:
                add(name, truth - value)


def _spread(residuals: Sequence[Residual], stratum: str) -> Spread:
    low, high = interval([each for each in residuals if each.stratum == stratum] or residuals)
    return Spread(low=round(min(0.0, low), 4), high=round(max(0.0, high), 4))
