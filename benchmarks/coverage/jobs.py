"""The nouns: what is to be run, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Library = Literal["torchvision", "timm", "transformers"]
LIBRARIES: tuple[Library, ...] = ("torchvision", "timm", "transformers")

GPU = "a100-80gb"
"""Large enough for every model here: running out of memory is not what is measured."""

Outcome = Literal[
    "ran",
    "unsupported function",
    "wrong count",
    "other branch",
    "failed",
    "timeout",
    "fails on a real machine too",
    "not tried",
]
OUTCOMES: dict[Outcome, str] = {
    "ran": "both steps ran, the peaks equal torch's own to the byte, and the record equals the CPU's line by line",
    "unsupported function": "the job called a CUDA function that the virtual GPU does not implement; its log names it",
    "wrong count": "foretell's peak differs from torch.cuda.max_memory_* inside the process",
    "other branch": "the record of operators, shapes and integers differs from that on the CPU",
    "failed": "an exception or a crash on the virtual GPU, but not on the CPU",
    "timeout": "the steps finished on the CPU in time, but not on the virtual GPU",
    "fails on a real machine too": "the same code, model and inputs raised the same exception on the CPU",
    "not tried": "the CPU needs more time or memory than a job is given, so there is nothing to compare with",
}
WRONG: frozenset[Outcome] = frozenset({"unsupported function", "wrong count", "other branch", "failed", "timeout"})


@dataclass(frozen=True, slots=True, order=True)
class Job:
    library: Library
    name: str
    head: str = ""

    @property
    def key(self) -> str:
        return "/".join(filter(None, (self.library, self.name, self.head)))

    @classmethod
    def of(cls, key: str) -> Job:
        library, name, *head = key.split("/")
        assert library in LIBRARIES, key
        return cls(library, name, *head)  # type: ignore[arg-type]


class HarnessError(Exception):
    """Ours, not the model's: such a job has no verdict but "failed"."""


OUT_OF_TIME, OUT_OF_MEMORY = "out of time", "out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """One run of a job, on the CPU or on the virtual GPU, that has ended."""

    said: dict[str, Any]
    """What the function returned."""
    problem: str
    """Empty, the exception, the signal, or what it ran out of."""
    traceback: str
    log: str
    exit_status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    job: str
    outcome: Outcome
    reason: str = ""
    evidence: list[str] = field(default_factory=list)
    """The first lines that differ, or the end of the traceback."""
    seconds: dict[str, float] = field(default_factory=dict)
    num_parameters: int = 0
    num_lines: int = 0
    """Of the record: so many operators, modules, backwards and steps were compared."""
    num_unknown_reads: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
