"""Step time and utilization from a description alone: a formula with fitted coefficients times a learned correction,
with conformal intervals. It learns the time model's answer for jobs that load no data, so it knows nothing of loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, log2
from typing import Literal

from foretell.features import JobFeatures, Speed
from foretell.formulas import speed as formula
from foretell.formulas.speed import BUSY, HOST, SpeedPoint
from foretell.learn import trees
from foretell.records import Gpu

Target = Literal["step", "gract", "smact"]
TARGETS: tuple[Target, ...] = ("step", "gract", "smact")
GRACT_OF_BUSY = 0.93
"""DCGM's graphics engine never counts as active for more."""
STRATA = ("mlp", "gpu", "host")
"""What a step waits for, by the formula; steps of MLPs are so short that they wait for much that is in no description.
"""
NAMES = (
    "log_step", "log_busy_over_host", *(f"share_{name}" for name in BUSY), "nhwc_share", "log_calls",
    "log_flops_per_byte", "log_tensor_rate", "capability", "sms", "in_lists", "element_bytes",
)  # fmt: skip
_LARGEST_CORRECTION = 1.2
_LARGEST_RATIO = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Beside the best guess: logarithms of a time, differences of a share."""

    low: float
    high: float

    def __post_init__(self) -> None:
        assert isfinite(self.low), "a spread that is none"
        assert isfinite(self.high), "a spread that is none"
        assert self.low <= self.high, "a spread that is none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What of a card is computed with."""

    coefficients: dict[str, float]
    """Of the terms of `BUSY` and `HOST`."""
    spreads: dict[str, dict[str, Spread]]
    """By target and stratum."""
    factor: float = 1.0
    """Of the step time, on a fleet's own cards."""

    def __post_init__(self) -> None:
        wanted = {*BUSY, *HOST}
        assert set(self.coefficients) == wanted, "other coefficients than those of the formula"
        assert all(0 <= each < 1e9 for each in self.coefficients.values()), "a coefficient that is none"
        assert all(set(STRATA) <= self.spreads.get(name, {}).keys() for name in TARGETS), "a spread is missing"
        assert 0.01 < self.factor < 100, "a factor that is none"


@dataclass(frozen=True, eq=False)
class Fast:
    """An estimator of time, evaluated in microseconds."""

    models: dict[str, trees.Trees]
    numbers: Numbers

    def guess_all(self, jobs: Sequence[tuple[JobFeatures, Gpu]]) -> list[Speed | None]:
        """None: what the forward pass computes is not known."""
        found: list[Speed | None] = [None] * len(jobs)
        points = [formula.point_of(job, gpu) for job, gpu in jobs]
        known = [(i, point, *self.parts(point)) for i, point in enumerate(points) if point is not None]
        if not known:
            return found
        rows = [vector(*jobs[i], point, busy, host) for i, point, busy, host in known]
        answers = {name: self.models[name].predict(rows).tolist() for name in TARGETS}
        for at, (i, _, busy, host) in enumerate(known):
            which = stratum(jobs[i][0], busy, host)
            found[i] = self._speed(which, busy, host, *(answers[name][at] for name in TARGETS))
        return found

    def parts(self, point: SpeedPoint) -> tuple[float, float]:
        """Milliseconds of the GPU and of the host, by the formula."""
        return parts(point, self.numbers.coefficients)

    def _speed(self, stratum: str, busy: float, host: float, step: float, gract: float, smact: float) -> Speed:
        spreads = {name: self.numbers.spreads[name][stratum] for name in TARGETS}
        bounded = max(-_LARGEST_CORRECTION, min(_LARGEST_CORRECTION, step))
        step_ms = formula.step_ms(busy, host) * exp(bounded) * self.numbers.factor
        active = min(GRACT_OF_BUSY, max(0.0, plain_gract(busy, host) + gract))
        sm = active * min(1.0, max(0.0, smact))
        return Speed(
            step_ms=step_ms,
            step_low_ms=step_ms * exp(min(0.0, spreads["step"].low)),
            step_high_ms=step_ms * exp(max(0.0, spreads["step"].high)),
            gract=active,
            gract_low=max(0.0, active + min(0.0, spreads["gract"].low)),
            gract_high=min(1.0, active + max(0.0, spreads["gract"].high)),
            smact=sm,
            smact_low=max(0.0, sm + min(0.0, spreads["smact"].low)),
            smact_high=min(1.0, sm + max(0.0, spreads["smact"].high)),
        )


def parts(point: SpeedPoint, coefficients: dict[str, float]) -> tuple[float, float]:
    busy = sum(coefficients[name] * term for name, term in zip(BUSY, point.busy, strict=True))
    host = sum(coefficients[name] * term for name, term in zip(HOST, point.host, strict=True))
    return busy, host


def stratum(features: JobFeatures, busy: float, host: float) -> str:
    return "mlp" if features.family == "mlp" else "gpu" if busy >= host else "host"


def plain_gract(busy: float, host: float) -> float:
    return GRACT_OF_BUSY * min(1.0, busy / formula.step_ms(busy, host))


def vector(features: JobFeatures, gpu: Gpu, point: SpeedPoint, busy: float, host: float) -> list[float]:
    """In the order of `NAMES`. Shares and ratios, so that a larger job or card looks like those of the data set."""
    total = sum(point.busy) or 1.0
    ratio = log((busy + 1e-6) / (host + 1e-6))
    return [
        min(log(formula.step_ms(busy, host)), 8.0),
        max(-_LARGEST_RATIO, min(_LARGEST_RATIO, ratio)),
        *(term / total for term in point.busy),
        point.nhwc_share,
        log2(1 + point.host[0]),
        log(gpu.fp32_flops / gpu.bandwidth_bytes_per_second),
        log(max(1.0, gpu.tensor_flops / gpu.fp32_flops)),
        gpu.compute_capability[0] + gpu.compute_capability[1] / 10,
        float(gpu.num_sms),
        float(bool(features.foreach)),
        float(features.element_bytes or 4),
    ]
