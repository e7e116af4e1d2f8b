"""What the errors depend on, and how certain the figures are: ANOVA over the factors of the runs, and a bootstrap.

statsmodels and numpy are imported when called: only `foretell evaluate` needs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretell.errors import UnsupportedError
from foretell.evaluation.metrics import OURS, Judged

if TYPE_CHECKING:
    import numpy as np

_MIN_ROWS = 12
_NUMERIC = "batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """The share of the variance of our relative error that one factor explains, given the others."""

    set: str
    name: str
    num_levels: int | None
    """None: numeric, with a linear effect."""
    share: float
    """Share of the sum of squares, type II."""
    f_value: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """A figure over random configurations, with its 95 % interval."""

    set: str
    tool: str
    figure: str
    mean: float
    low: float
    high: float


def anova(judged: Sequence[Judged]) -> list[Factor]:
    ours = [each for each in judged if each.tool == OURS and each.error is not None]
    sets = dict.fromkeys(each.case.set for each in ours)
    return [factor for name in sets for factor in _anova(name, [each for each in ours if each.case.set == name])]


def _anova(name: str, judged: list[Judged]) -> list[Factor]:
    pandas, api, formula_api = statsmodels_and_pandas()
    frame = pandas.DataFrame([{**each.case.factors, "error": each.error} for each in judged])
    factors = [column for column in frame.columns if column != "error" and frame[column].nunique() > 1]
    num_parameters = sum(1 if column == _NUMERIC else frame[column].nunique() - 1 for column in factors)
    if not factors or len(frame) < max(_MIN_ROWS, num_parameters + 2) or frame["error"].std() == 0:
        return []
    terms = {column: column if column == _NUMERIC else f"C({column})" for column in factors}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two models run with only one optimizer each cannot be separated
        model = formula_api.ols(f"error ~ {' + '.join(terms.values())}", data=frame).fit()
        table = api.stats.anova_lm(model, typ=2)
    total = table["sum_sq"].sum()
    return [
        Factor(
            set=name,
            name=column,
            num_levels=None if column == _NUMERIC else int(frame[column].nunique()),
            share=float(table.loc[term, "sum_sq"] / total),
            f_value=float(table.loc[term, "F"]),
            p_value=float(table.loc[term, "PR(>F)"]),
        )
        for column, term in terms.items()
    ]


def monte_carlo(judged: Sequence[Judged], *, num_draws: int = 500, num_runs: int = 500, seed: int = 0) -> list[Draws]:
    """Random configurations: first a level of the set's leading factor, uniformly, then one of its measured runs.

    The measured runs are not spread evenly over models; this way, every model has the same weight. `num_draws` samples
    of `num_runs` each, drawn with replacement, give a figure and its bootstrap interval.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    found = []
    for key in dict.fromkeys((each.case.set, each.tool) for each in judged):
        rows = [each for each in judged if (each.case.set, each.tool) == key and each.error is not None]
        if len(rows) < _MIN_ROWS:
            continue
        groups = _groups(rows)
        samples = np.array([_sample(groups, num_runs, generator) for _ in range(num_draws)])
        figures: dict[str, Callable[[Any], np.ndarray[Any, Any]]] = {
            "median error": lambda errors: np.median(np.abs(errors), axis=1),
            "mean error": lambda errors: np.mean(np.abs(errors), axis=1),
            "underestimates": lambda errors: np.mean(errors < 0, axis=1),
        }
        for figure, compute in figures.items():
            values = compute(samples)
            low, high = np.quantile(values, [0.025, 0.975])
            found.append(
                Draws(set=key[0], tool=key[1], figure=figure, mean=values.mean(), low=float(low), high=float(high))
            )
    return found


def _groups(rows: list[Judged]) -> list[list[float]]:
    by_level: dict[str, list[float]] = {}
    for each in rows:
        levels = [str(value) for name, value in each.case.factors.items() if name != _NUMERIC]
        by_level.setdefault(levels[0] if levels else "", []).append(each.error or 0.0)
    return list(by_level.values())


def _sample(groups: list[list[float]], size: int, generator: np.random.Generator) -> list[float]:
    chosen = generator.integers(len(groups), size=size)
    return [groups[group][generator.integers(len(groups[group]))] for group in chosen]


def statsmodels_and_pandas() -> tuple[Any, Any, Any]:
    try:
        import pandas
        import statsmodels.api
        import statsmodels.formula.api
    except ImportError as error:
        raise UnsupportedError(f"`foretell evaluate` needs {error.name}: pip install 'foretell[evaluate]'.") from None
    return pandas, statsmodels.api, statsmodels.formula.api
