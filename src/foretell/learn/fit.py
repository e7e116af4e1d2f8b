"""Fits the coefficients of foretell's formula: not negative, with the least relative error."""

from __future__ import annotations

from typing import Any

_ROUNDS = 60
_SMALLEST_ERROR = 1e-3


def fit_coefficients(terms: Any, truth: Any) -> Any:
    """Coefficients of the columns of `terms` whose sum is nearest to `truth`, by the absolute relative error.

    Iteratively reweighted least squares: a row weighs the less the larger its error, so outliers do not bend the rest.
    """
    import numpy as np
    from scipy.optimize import nnls

    relative = np.asarray(terms, dtype=float) / np.asarray(truth, dtype=float)[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-12)
    weights = np.ones(len(relative))
    best, best_error = None, np.inf
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found, _norm = nnls(relative / scale * root[:, None], root)
        errors = np.abs(relative / scale @ found - 1)
        if errors.mean() < best_error:
            best, best_error = found, errors.mean()
        weights = 1 / np.maximum(errors, _SMALLEST_ERROR)
    assert best is not None
    return best / scale
