"""Conformal intervals: how far jobs and architectures that an estimator was not trained on were from its answer.

Quantiles are over architectures: the runs of one count together as much as those of any other, so that the interval
holds for one that nobody has seen. Of the sources of a stratum (labels, sets of measured runs), the widest counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, expm1
from typing import TypeVar

INSIDE = 0.95
MOST_INSIDE = 0.99
"""Of the runs that are not far off."""
FAR = 0.4
"""A measured run whose memory is off by more, on either side, is not of the job that was described: it failed, or its
script had other settings. No interval of use contains it. Where there are such runs, so many more of the others are
inside, as far as that goes."""
TOO_LOW = 0.02
"""Share of jobs whose class of memory may be above that of the bound."""
FEWEST_OF_A_SOURCE = 80
MEASURED = "measured: "
_STEPS = 400
_LARGEST_BOUND = 2.0
"""As a logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    stratum: str
    source: str
    group: str
    """Its architecture."""
    value: float
    """What must be added to the answer to get the truth: to a logarithm, or to a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResidual(Residual):
    """`value` is log((truth + offset) / (guess + offset))."""

    base_bytes: float
    """The guess and the offset."""
    class_bytes: int
    """The width of a class of memory."""


_Residual = TypeVar("_Residual", bound=Residual)


def by_source(residuals: Sequence[_Residual]) -> dict[str, list[_Residual]]:
    """Sources with few rows are taken together, labels and measured runs apart."""
    counts = Counter(each.source for each in residuals)
    found: dict[str, list[_Residual]] = {}
    for each in residuals:
        is_small = counts[each.source] < FEWEST_OF_A_SOURCE
        others = MEASURED if each.source.startswith(MEASURED) else "others"
        found.setdefault(others if is_small else each.source, []).append(each)
    return found


def interval(residuals: Sequence[Residual]) -> tuple[float, float]:
    ends = [_ends(each) for each in by_source(residuals).values()]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _ends(residuals: Sequence[Residual]) -> tuple[float, float]:
    near = [each for each in residuals if is_near(each)] or residuals
    far = 1 - len(near) / len(residuals)
    inside = min(MOST_INSIDE, INSIDE / (1 - far)) if far else INSIDE
    return conformal(near, (1 - inside) / 2), conformal(near, (1 + inside) / 2)


def is_near(residual: Residual) -> bool:
    is_measured = isinstance(residual, MemoryResidual) and residual.source.startswith(MEASURED)
    return abs(residual.value) <= FAR or not is_measured


def bound(residuals: Sequence[MemoryResidual]) -> float:
    """The smallest addition with which the class of the answer is too low for few enough, in every source. Where the
    edges of the classes lie is chance: counted is the part of a class by which an answer is too low."""
    return max(_bound([one for one in each if is_near(one)] or each) for each in by_source(residuals).values())


def conformal(residuals: Sequence[Residual], part: float) -> float:
    """The quantile over groups, with the correction for a finite sample: outwards by one run."""
    ordered = sorted(residuals, key=lambda each: each.value if part > 0.5 else -each.value)
    weights = list(accumulate(_weights(ordered)))
    at = bisect_left(weights, max(part, 1 - part) * weights[-1] * (1 + 1 / len(ordered)) - 1e-9)
    return ordered[min(at, len(ordered) - 1)].value


def _bound(residuals: Sequence[MemoryResidual]) -> float:
    weights = _weights(residuals)
    count = len(residuals)
    most = sum(weights) * (TOO_LOW * (count + 1) - 1) / count  # the correction for a finite sample: one more, too low

    def too_low(addition: float) -> float:
        missing = (
            each.base_bytes * exp(addition) * expm1(max(0.0, each.value - addition)) / each.class_bytes
            for each in residuals
        )
        return sum(weight * min(1.0, part) for weight, part in zip(weights, missing, strict=True))

    steps = (step * _LARGEST_BOUND / _STEPS for step in range(_STEPS))
    return next((each for each in steps if too_low(each) <= max(0.0, most)), _LARGEST_BOUND)


def _weights(residuals: Sequence[Residual]) -> list[float]:
    sizes = Counter(each.group for each in residuals)
    return [1 / sizes[each.group] for each in residuals]
