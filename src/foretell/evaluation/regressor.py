"""A learned baseline for times and utilization: ridge regression on how much work of each kind a step has.

It knows no rule of foretell's but the sums of FLOPs and bytes, and learns from the very sets it is judged on. A family
of models is always estimated by a fit on the other families: sister models would tell it the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

NAME = "ridge regression"
FEWEST_RUNS = 12
_PENALTY = 1.0
_SMALLEST_MS = 1e-3


def held_out(
    work: Sequence[Mapping[str, float]], families: Sequence[str], measured: Sequence[float], *, is_time: bool
) -> list[float] | None:
    """An estimate for each run, whose family was not in the fit; None if too few runs are of other families.

    `work`: milliseconds at the peaks of the data sheet, by kind, of each run.
    """
    import numpy as np

    if len(measured) < FEWEST_RUNS:
        return None
    kinds = sorted({kind for each in work for kind in each})
    columns = [[math.log(_SMALLEST_MS + each.get(kind, 0.0)) for kind in kinds] for each in work]
    size = np.array([math.log(_SMALLEST_MS + sum(each.values())) for each in work])
    inputs = np.column_stack([np.array(columns), size])
    truth = np.array([_to_line(value, is_time=is_time) for value in measured])
    offset = size if is_time else np.zeros(len(size))  # of a time, only the ratio to its size is learned
    estimates = np.zeros(len(truth))
    for family in sorted(set(families)):
        is_out = np.array([each == family for each in families])
        if len(truth) - is_out.sum() < FEWEST_RUNS:
            return None
        known = inputs[~is_out]
        mean, spread = known.mean(axis=0), known.std(axis=0) + 1e-9
        scaled, wanted = (known - mean) / spread, (truth - offset)[~is_out]
        weights = np.linalg.solve(
            scaled.T @ scaled + _PENALTY * np.eye(scaled.shape[1]), scaled.T @ (wanted - wanted.mean())
        )
        # Not outside of what it has seen: a line has no limits.
        guess = ((inputs[is_out] - mean) / spread) @ weights + wanted.mean()
        estimates[is_out] = np.clip(guess, wanted.min(), wanted.max()) + offset[is_out]
    back: Callable[[float], float] = math.exp if is_time else _share
    return [back(float(each)) for each in estimates]


def _to_line(value: float, *, is_time: bool) -> float:
    if is_time:
        return math.log(value)
    inside = min(max(value, 0.005), 0.995)
    return math.log(inside / (1.0 - inside))


def _share(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))
