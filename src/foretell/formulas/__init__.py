"""Instant estimates by formula: plain functions of a job's features, behind one protocol. Nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from foretell.features import Guess, JobFeatures
from foretell.formulas import model_states, own, published
from foretell.records import Gpu

__all__ = ["FORMULAS", "Estimator", "Formula"]


class Estimator(Protocol):
    """Answers from a description alone."""

    @property
    def name(self) -> str: ...

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        """None: not defined for this job, or too little is known of it."""


@dataclass(frozen=True, slots=True)
class Formula:
    name: str
    compute: Callable[[JobFeatures, Gpu], int | None]
    is_whole_device: bool = False
    """Its number stands for all memory of the card: nothing is to be added for context and libraries."""

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        num_bytes = self.compute(features, gpu)
        if num_bytes is None:
            return None
        return Guess(estimator=self.name, reserved_bytes=num_bytes, is_whole_device=self.is_whole_device)


def _zero(stage: int) -> Callable[[JobFeatures, Gpu], int | None]:
    def compute(features: JobFeatures, gpu: Gpu) -> int | None:
        largest = (features.largest_parameter_bytes or 0) // 4
        if features.parameters is None:
            return None
        return model_states.zero_bytes(features.parameters, stage=stage, largest_layer_parameters=largest)

    return compute


def _accelerate(features: JobFeatures, gpu: Gpu) -> int | None:
    if features.parameters is None:
        return None
    return model_states.accelerate_bytes(features.parameters, is_mixed=features.element_bytes == 2)


def _own(features: JobFeatures, gpu: Gpu) -> int | None:
    return own.formula_bytes(features, gpu) if features.parameter_bytes is not None and features.layers else None


FORMULAS: dict[str, Formula] = {
    each.name: each
    for each in (
        Formula("horus", lambda features, gpu: published.horus_bytes(features), is_whole_device=True),
        Formula("dnnmem", published.dnnmem_bytes),
        Formula("llmem", lambda features, gpu: published.llmem_bytes(features)),
        Formula("faketensor", lambda features, gpu: published.faketensor_bytes(features)),
        Formula("memtracker", lambda features, gpu: published.memtracker_bytes(features)),
        Formula("zero1", _zero(1)),
        Formula("zero2", _zero(2)),
        Formula("zero3", _zero(3)),
        Formula("accelerate", _accelerate),
        Formula("by-hand", lambda features, gpu: model_states.weights_and_activations_bytes(features)),
        Formula("formula", _own),
    )
}
