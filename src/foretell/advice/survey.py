"""Reads the survey of a training run (`inside/watch/survey.py`), and the changes a run reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.protocol.journal import lines_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    kind: str
    """Its class: `torch.optim.adamw.AdamW`."""
    implementation: str | None
    """foreach, fused or for-loop; None: the optimizer has no such option."""
    has_fused: bool
    state_bytes: int
    large_state_bytes: int
    """State tensors large enough to be kept in 8 bits."""
    large_state_elements: int

    @property
    def is_adam(self) -> bool:
        return self.kind in ("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    repeated_class: str | None
    """The class whose instances keep the most activations that checkpointing could free."""
    repeated_count: int
    repeated_bytes: int
    is_autocast: bool
    parameter_bytes: dict[str, int]
    """By dtype."""
    optimizers: tuple[Optimizer, ...]
    keeps_gradients: bool
    """zero_grad(set_to_none=False) was called."""
    late_gradient_bytes: int
    """Gradients held during the forward pass and zeroed after it."""
    has_smaller_batch: bool
    """The run reached a smaller last batch of an epoch."""
    has_bitsandbytes: bool


def read_survey(folder: Path) -> Survey | None:
    for line in lines_of(folder, "survey"):
        optimizers = tuple(Optimizer(kind=each.pop("class"), **each) for each in line.pop("optimizers"))
        return Survey(optimizers=optimizers, **line)
    return None


def read_changes(folder: Path) -> dict[str, dict[str, Any]]:
    """The changes made, by word, with the details reported by the run."""
    return {line.pop("name"): line for line in lines_of(folder, "alternative")}
