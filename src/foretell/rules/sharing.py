"""How fast jobs run side by side on one card, from how busy each keeps it alone.

Two processes on a card take turns, so a job is slowed where it and a neighbour both have work for the card. How much
work a kernel really is cannot be seen from the share of time in which some kernel runs; the use of memory bandwidth
says more. So the pressure of a job is the geometric mean of the two, and

    speed of A = 1 / (1 + CONTENTION * pressure of A * sum of the pressures of the others)

relative to A alone. The constants were fitted on pairs measured on an RTX 3090 (`make sharing-calibration`). Not in it:
caches, the clock that falls under load, how the CPU is shared, and MPS, under which kernels run at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONTENTION = 0.85
SCATTER = 0.1
SCATTER_OF_SLOWDOWN = 0.8
"""The range is the speed +- (SCATTER + SCATTER_OF_SLOWDOWN * (1 - speed)). Fitted to hold 97 % of the speeds, it holds
91 % if neither model of a pair is in the fit."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a job keeps a card that it has for itself, as shares of the time of a step."""

    gract: float
    """Some kernel runs: DCGM's GRACT, or the GPU utilization of nvidia-smi."""
    dram_active: float
    """Memory bandwidth in use: DCGM's DRAMA, or the memory utilization of nvidia-smi."""

    def __post_init__(self) -> None:
        assert 0 <= self.gract <= 1, self
        assert 0 <= self.dram_active <= 1, self

    @property
    def pressure(self) -> float:
        return math.sqrt(self.gract * self.dram_active)


@dataclass(frozen=True, slots=True)
class Speed:
    """Relative to the job alone on the card, with the range that holds 90 % of measured pairs."""

    expected: float
    low: float
    high: float


def speeds(loads: Sequence[Load]) -> list[Speed]:
    """The speed of each job beside all the others."""
    total = sum(load.pressure for load in loads)
    slowed = [1 / (1 + CONTENTION * load.pressure * (total - load.pressure)) for load in loads]
    return [_ranged(speed, fair_share=1 / len(loads)) for speed in slowed]


def _ranged(speed: float, *, fair_share: float) -> Speed:
    """Jobs that take turns get about their fair share at least."""
    scatter = SCATTER + SCATTER_OF_SLOWDOWN * (1 - speed)
    low = max(speed - scatter, min(speed, fair_share) - SCATTER, 0.0)
    return Speed(expected=speed, low=low, high=min(1.0, speed + scatter))
