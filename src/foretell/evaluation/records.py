"""The records of an evaluation: a measured run, and the answer of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEstimate:
    """Another tool's estimate for the same run. None: not given."""

    num_bytes: int | None
    is_oom: bool | None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured run, and the training script that repeats it."""

    key: str
    """The set and the row's number: `cnn_rtx/17`."""
    set: str
    workload: str
    """A script of `evaluation/workloads`."""
    arguments: tuple[str, ...]
    gpu: str
    measured_bytes: int
    """For a run that ended out of memory: the level it reached."""
    is_oom: bool
    context_bytes: int | None
    """Memory of an empty process in that campaign, if the measured bytes include it; otherwise None."""
    factors: dict[str, str | float] = field(default_factory=dict)
    others: dict[str, OtherEstimate] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    """Of its time: `step_ms`, or utilization by metric (times.py)."""

    @property
    def has_memory(self) -> bool:
        return self.measured_bytes > 0

    @property
    def is_kept_back(self) -> bool:
        """Not used in fitting the interval of convolutions; other constants did use it (docs/accuracy.md)."""
        return int(self.key.rpartition("/")[2]) % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The engine's estimate for one case, in the terms of the measurement: with the context only if that had it."""

    key: str
    engine: str
    torch: str
    problem: str | None = None
    """Why there is no number."""
    is_oom: bool = False
    num_bytes: int = 0
    low_bytes: int = 0
    high_bytes: int = 0
    request_bytes: int = 0
    reserved_bytes: int = 0
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
