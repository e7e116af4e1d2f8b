"""Trains foretell's learned estimator on a data set: the formula's coefficients, the correction, and the intervals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell import disk
from foretell.errors import UnsupportedError, UsageError
from foretell.features import JobFeatures
from foretell.formulas import own
from foretell.formulas.own import TERMS, Depth
from foretell.learn import trees
from foretell.learn.classes import CLASS_BYTES
from foretell.learn.estimator import OFFSET_BYTES, STRATA, stratum
from foretell.learn.fit import fit_coefficients
from foretell.learn.spreads import MEASURED, MemoryResidual, bound, by_source, interval
from foretell.learn.vectors import constraints, names, vector
from foretell.plain import to_plain
from foretell.records import Gpu

if TYPE_CHECKING:
    from foretell.learn.dataset import Row
    from foretell.learn.estimator import Learned

FOLDS = 5
FEWEST_ROWS = 50
FEWEST_MEASURED = 5
_FEWEST_OF_A_STRATUM = 30
_PARAMETERS = {
    "objective": "fair", "fair_c": 0.003, "monotone_constraints_method": "advanced",
    "learning_rate": 0.1, "num_leaves": 12, "max_depth": 5, "min_data_in_leaf": 20,
    "lambda_l2": 1.0, "feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1, "verbosity": -1,
    "num_threads": 1, "seed": 0,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A job and what it needs."""

    features: JobFeatures
    gpu: Gpu
    reserved_bytes: int
    group: str
    """Rows of one group are never both in training and in a test."""
    source: str = ""
    """Where the row is from: the kind of a label, the set of a measured run."""


@dataclass(frozen=True, eq=False)
class Trained:
    models: dict[str, trees.Trees]
    spreads: dict[str, dict[str, dict[str, float]]]
    scores: dict[str, dict[str, dict[str, float]]]
    residuals: tuple[MemoryResidual, ...]
    """Of the complete descriptions, out of fold."""


def lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise UnsupportedError("training needs LightGBM: pip install 'foretell[train]'.") from None
    return lightgbm


def fit_formula(rows: Sequence[Labelled]) -> dict[str, dict[str, dict[str, float]]]:
    """The coefficients of `formulas/fitted.json`. Too few language models: as for other transformers."""
    np = trees.numpy()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for depth, depth_names in TERMS.items():
        found[depth] = {}
        known = [(own.group_of(row.features), row) for row in _at(rows, depth)]
        for group in own.GROUPS:
            chosen = [row for each, row in known if each == group]
            if len(chosen) < FEWEST_ROWS and group == "language":
                continue
            if len(chosen) < FEWEST_ROWS:
                raise UsageError(
                    f"the data set has {len(chosen)} usable jobs of the family {group}; at least {FEWEST_ROWS} are "
                    "needed. Generate more with `foretell dataset generate`."
                )
            values = np.array([own.terms(row.features, row.gpu) for row in chosen])
            fitted = fit_coefficients(values, np.array([row.reserved_bytes for row in chosen]))
            found[depth][group] = {
                name: float(f"{value:.4g}") for name, value in zip(depth_names, fitted, strict=True)
            }
    return found


def write_formula(path: Path, rows: Sequence[Labelled]) -> None:
    """Fit the coefficients, write them as `formulas/fitted.json` has them, and use them in this process."""
    found = fit_formula(rows)
    about = f"Fitted by `foretell train --formula` to {len(rows)} labels of the virtual GPU; docs/learned.md has more."
    disk.write(path, json.dumps({"about": about, "coefficients": found}, indent=1) + "\n", is_private=False)
    own.use(found)


def train(rows: Sequence[Labelled]) -> Trained:
    """On log(truth / formula), with the coefficients that are installed. Intervals are from out-of-fold residuals."""
    np = trees.numpy()
    models: dict[str, trees.Trees] = {}
    spreads: dict[str, dict[str, dict[str, float]]] = {}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    kept: tuple[MemoryResidual, ...] = ()
    for depth in TERMS:
        chosen = _at(rows, depth)
        points = [own.point_of(row.features, row.gpu) for row in chosen]
        inputs = np.array([vector(row.features, row.gpu, point) for row, point in zip(chosen, points, strict=True)])
        formula = np.array([point.formula_bytes for point in points], dtype=float)
        target = np.log(np.array([row.reserved_bytes for row in chosen]) / formula)
        folds = np.array([fold_of(row.group) for row in chosen])
        errors = np.zeros(len(chosen))
        for fold in range(FOLDS):
            is_test = folds == fold
            if is_test.any() and not is_test.all():
                predicted = _boosted(inputs[~is_test], target[~is_test], depth).predict(inputs[is_test])
                errors[is_test] = target[is_test] - predicted
        models[depth] = _boosted(inputs, target, depth)
        guesses = np.exp(target - errors) * formula
        found = tuple(
            _residual(row, point, float(guess), row.source)
            for point, row, guess in zip(points, chosen, guesses, strict=True)
        )
        spreads[depth], scores[depth] = _spreads(found), _scores(found)
        kept = found if depth == "complete" else kept
    return Trained(models, spreads, scores, kept)


def learn(rows: Sequence[Row], measured: Sequence[Row] = ()) -> Learned:
    """The estimator, with its card. `measured` fits one factor for each family, and the intervals."""
    from foretell.learn import speed, train_speed
    from foretell.learn.estimator import Learned

    trained = train([row.labelled for row in rows])
    card = card_of(trained, rows, [row.labelled for row in measured])
    times = train_speed.train(train_speed.timed(rows))
    if times is None:
        return Learned(trained.models, card)
    fast = train_speed.with_intervals(times, train_speed.timed(measured))
    card["features"] |= {name: list(speed.NAMES) for name in speed.TARGETS}
    return Learned(trained.models, {**card, "speed": to_plain(fast.numbers), "speed_scores": times.scores}, fast)


def save(path: Path, model: Learned) -> None:
    trees.save(path, {**model.models, **(model.fast.models if model.fast else {})}, model.card)


def card_of(trained: Trained, rows: Sequence[Row], measured: Sequence[Labelled]) -> dict[str, Any]:
    """What the model was trained on, and its intervals. `measured` fits one factor for each family."""
    def counted(name: str) -> dict[str, int]:
        return dict(Counter(str(getattr(row, name)) for row in rows))

    factors, spreads = adapted(trained, measured)
    return {
        "features": {depth: list(names(depth)) for depth in TERMS},
        "spreads": spreads,
        "scores": trained.scores,
        "factors": factors,
        "data": {
            "jobs": len(rows), "kinds": counted("kind"), "gpus": counted("gpu"), "torch": counted("torch"),
            "sources": counted("source"),
            "measured_rows": len(measured),
            "measured_use": "one factor and the intervals of each family" if measured else "none",
            "settings": "three training steps, zero_grad to None, cudnn.benchmark off, no gradient accumulation",
        },
        "largest_bytes": max(row.reserved_bytes for row in rows),
        "software": {"lightgbm": lightgbm().__version__, "parameters": _PARAMETERS, "rounds": _ROUNDS},
    }  # fmt: skip


def adapted(
    trained: Trained, measured: Sequence[Labelled]
) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
    """For each group with enough measured runs, the typical truth / estimate: the median of each source, averaged; and
    intervals from these runs and the labels. Those of jobs known by a summary stay as they are."""
    from foretell.learn.estimator import Learned

    np = trees.numpy()
    model = Learned(trained.models, {"spreads": trained.spreads})
    guesses = model.guess_all([(row.features, row.gpu) for row in measured])
    found: dict[str, list[MemoryResidual]] = {}
    for row, guess in zip(measured, guesses, strict=True):
        # One that would not fit ran with less, because the allocator gave back what it could: no need to learn that.
        if guess is not None and row.reserved_bytes > 0 and guess.reserved_bytes <= row.gpu.total_bytes:
            point = own.point_of(row.features, row.gpu)
            one = _residual(row, point, guess.reserved_bytes, f"{MEASURED}{row.source}")
            found.setdefault(point.group, []).append(one)
    factors: dict[str, float] = {}
    residuals = list(trained.residuals)
    for group, group_residuals in found.items():
        if len(group_residuals) >= FEWEST_MEASURED:
            middles = [np.median([each.value for each in source]) for source in by_source(group_residuals).values()]
            middle = float(np.mean(middles))
            factors[group] = round(float(np.exp(middle)), 5)
            residuals += [replace(each, value=each.value - middle) for each in group_residuals]
    complete = _spreads(residuals) if measured else trained.spreads["complete"]
    return factors, {**trained.spreads, "complete": complete}


def _at(rows: Sequence[Labelled], depth: Depth) -> list[Labelled]:
    """The rows as they are known at that depth, without those of which only a time is known."""
    rows = [row for row in rows if row.reserved_bytes > 0]
    if depth == "complete":
        return [row for row in rows if row.features.is_complete]
    hidden: dict[str, Any] = dict.fromkeys(
        ("saved_bytes", "output_bytes", "forward_peak_bytes", "backward_peak_bytes", "largest_bytes", "second_bytes",
         "convolutions", "input_bytes", "played_bytes", "played_workspace_bytes", "played_growth_bytes", "work")
    )  # fmt: skip
    return [replace(row, features=replace(row.features, **hidden)) for row in rows]


def _boosted(inputs: Any, target: Any, depth: Depth) -> trees.Trees:
    library = lightgbm()
    data = library.Dataset(inputs, label=target, feature_name=list(names(depth)))
    parameters = {**_PARAMETERS, "monotone_constraints": constraints(depth)}
    return trees.from_lightgbm(library.train(parameters, data, num_boost_round=_ROUNDS))


def fold_of(group: str) -> int:
    from zlib import crc32

    return crc32(group.encode()) % FOLDS


def _of(residuals: Sequence[MemoryResidual], stratum: str) -> Sequence[MemoryResidual]:
    """Those of the stratum; if they are few, of the one it is part of: `cnn` are also those of `cnn-planned-large`."""
    chosen = [each for each in residuals if each.stratum == stratum]
    if stratum == "cnn" or len(chosen) < _FEWEST_OF_A_STRATUM:
        whole = stratum.rpartition("-")[0] or stratum
        chosen = [each for each in residuals if each.stratum == whole or each.stratum.startswith(f"{whole}-")]
    return chosen or residuals


def _scores(residuals: Sequence[MemoryResidual]) -> dict[str, dict[str, float]]:
    np = trees.numpy()
    scores: dict[str, dict[str, float]] = {}
    for name in STRATA:
        errors = np.abs(np.expm1([-each.value for each in _of(residuals, name)]))
        scores[name] = {
            "rows": len(errors),
            "median": round(float(np.median(errors)), 5),
            "p90": round(float(np.quantile(errors, 0.9)), 5),
        }
    return scores


def _spreads(residuals: Sequence[MemoryResidual]) -> dict[str, dict[str, float]]:
    spreads: dict[str, dict[str, float]] = {}
    for name in STRATA:
        low, high = interval(chosen := _of(residuals, name))
        spreads[name] = {"low": round(low, 5), "high": round(high, 5), "bound": round(bound(chosen), 5)}
    return spreads


def _residual(row: Labelled, point: own.Point, guess_bytes: float, source: str) -> MemoryResidual:
    base = guess_bytes + OFFSET_BYTES
    return MemoryResidual(
        stratum=stratum(row.features, point), source=source, group=row.group,
        value=log((row.reserved_bytes + OFFSET_BYTES) / base), base_bytes=base,
        class_bytes=CLASS_BYTES[row.features.family],
    )  # fmt: skip
