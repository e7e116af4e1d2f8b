"""The records of an evaluation: a measured run, and the answer of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from foretell.records import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEstimate:
    """Another tool's estimate for the same run. None: not given."""

    num_bytes: int | None
    is_oom: bool | None
    seconds: float | None = None


NO_SCRIPT = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured run, and the training script that repeats it."""

    key: str
    """The set and the row's number: `cnn_rtx/17`; `/failed` after it for the second run of a row."""
    set: str
    workload: str
    """A script of `evaluation/workloads`; NO_SCRIPT if none repeats it."""
    arguments: tuple[str, ...]
    gpu: str
    measured_bytes: int
    """For a run that ended out of memory: the level it reached."""
    is_oom: bool
    context_bytes: int | None
    """Memory of an empty process in that campaign, if the measured bytes include it; otherwise None."""
    is_context_unknown: bool = False
    """The measured bytes include the memory of an empty process, which nobody measured."""
    quantity: Literal["device", "allocated", "decision"] = "device"
    """Memory of the card, or PyTorch's own; or all that is known is whether the run fitted."""
    campaign: str = ""
    """Who measured, and when: one machine, one version of each library."""
    is_script_known: bool = True
    """False: nobody recorded how the model was trained, so the script here is a guess."""
    is_in_doubt: bool = False
    """Another process seems to have been on the card: judged like others, but nothing is fitted to it."""
    draws: tuple[tuple[str, ...], ...] = ()
    """Further arguments, each for a run with other batches, where those of the measured run are not known."""
    factors: dict[str, str | float] = field(default_factory=dict)
    others: dict[str, OtherEstimate] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    """Of its time: `step_ms`, or utilization by metric (times.py)."""

    @property
    def has_memory(self) -> bool:
        return self.measured_bytes > 0 or self.quantity == "decision"

    @property
    def family(self) -> str:
        """Runs of one architecture: never on both sides of a calibration."""
        names = ("model", "architecture")
        return f"{self.campaign}/{next((str(self.factors[name]) for name in names if name in self.factors), self.set)}"

    @property
    def is_kept_back(self) -> bool:
        return int(self.key.split("/")[1]) % 2 == 1


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
    reserved_bytes: int = 0
    seconds: float = 0.0
    evidence: Evidence | None = None
    """What the interval and the request are computed from; None if there is no number."""
    details: dict[str, Any] = field(default_factory=dict)
