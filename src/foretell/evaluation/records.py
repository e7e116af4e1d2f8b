"""The records of an evaluation: a measured run, and the answer of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEstimate:
    """What another tool said of the same run. None: it does not say."""

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
    """On a run that ended out of memory: the level it had reached."""
    is_oom: bool
    context_bytes: int | None
    """What an empty process took in that campaign, where the measured bytes include it; None where they do not."""
    factors: dict[str, str | float] = field(default_factory=dict)
    others: dict[str, OtherEstimate] = field(default_factory=dict)

    @property
    def is_kept_back(self) -> bool:
        """The search for the interval of convolutions did not use it; other constants did (docs/accuracy.md)."""
        return int(self.key.rpartition("/")[2]) % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the engine said of one case, in the measured run's terms: with the context only where that had it."""

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
