"""Formulas that know only parameters: what model, gradients and optimizer take. None counts activations."""

from __future__ import annotations

from math import ceil

from foretell.features import JobFeatures
from foretell.rules.optimizers import num_states


def state_bytes(features: JobFeatures) -> int:
    """Of the optimizer; an unknown one counts like Adam."""
    trained = features.trainable_bytes or features.parameter_bytes or 0
    return trained * num_states(features.optimizer, has_momentum=bool(features.momentum))


def least_bytes(features: JobFeatures) -> int:
    """Parameters, buffers, gradients and states: no job with these takes less."""
    trained = features.trainable_bytes if features.trainable_bytes is not None else features.parameter_bytes or 0
    return (features.parameter_bytes or 0) + (features.buffer_bytes or 0) + trained + state_bytes(features)


def zero_bytes(parameters: int, *, stage: int, num_gpus: int = 1, largest_layer_parameters: int = 0) -> int:
    """Model states on each card with DeepSpeed's ZeRO, mixed precision, Adam and no offloading.

    Stage 1: section 3 of Rajbhandari et al. (SC 2020), 2 + 2 + 12/N bytes a parameter; stages 2 and 3:
    `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` of DeepSpeed 0.19. No
    activations, buffers of communication or fragmentation.
    """
    assert parameters >= 0, parameters
    assert num_gpus > 0, num_gpus
    if stage == 1:
        return 4 * parameters + ceil(12 * parameters / num_gpus)
    if stage == 2:
        return 2 * parameters + int(18 * parameters / num_gpus)
    if stage == 3:
        return 4 * largest_layer_parameters + int(18 * parameters / num_gpus)
    raise ValueError(f"stage {stage}: must be 1, 2 or 3")


def accelerate_bytes(parameters: int, *, is_mixed: bool = False) -> int:
    """Training with Adam and a batch of one, as `accelerate estimate-memory` (1.15) prints it: its largest part, four
    times the parameters in float32, and twice with mixed precision. No activations; the parts are not added up."""
    parameter_bytes = 4 * parameters
    return (2 if is_mixed else 4) * parameter_bytes


def weights_and_activations_bytes(features: JobFeatures) -> int | None:
    """As people do it by hand: parameters, gradients and two states of Adam, and what autograd saves. No temporaries,
    workspaces or rounding; the optimizer is taken to be Adam."""
    if features.parameter_bytes is None or features.saved_bytes is None:
        return None
    return 4 * features.parameter_bytes + features.saved_bytes
