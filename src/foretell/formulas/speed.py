"""Step time by formula: what the forward pass computes and moves, at the rates of a card, times what a step takes of
it beyond the forward pass. `learn/speed.py` fits the coefficients to labels of the time model."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from foretell.features import JobFeatures, WorkKind
from foretell.formulas.model_states import state_bytes
from foretell.records import Gpu
from foretell.time.rates import sustained_flops

BUSY = (
    "convolution", "convolution_half", "grouped_convolution", "product", "product_half", "attention", "norm", "softmax",
    "pool", "copy", "lookup", "elementwise", "optimizer", "launches", "optimizer_launches",
)  # fmt: skip
"""Milliseconds of the GPU, by what takes them."""
HOST = ("operators", "views", "tensors", "tensor_operators")
"""Milliseconds of the CPU that issues the step."""
_SHARPNESS = 8
"""A step takes as long as the GPU or the host, whichever is longer, and a little more if both take as long."""
_PASSES = 3
"""The backward pass of a product is two of its size."""
_LAUNCH_MS = 2e-3
_OPERATOR_MS = 10e-3
_TENSORS_OF_A_LAUNCH = 60
"""Of an optimizer that works on lists."""
_PLACES = {name: at for at, name in enumerate(BUSY)}


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """What an estimator of time computes of a job on a card, once."""

    busy: tuple[float, ...]
    """The terms of `BUSY`."""
    host: tuple[float, ...]
    nhwc_share: float
    """Of the time of convolutions."""


def point_of(features: JobFeatures, gpu: Gpu) -> SpeedPoint | None:
    """None: what the forward pass computes is not known."""
    if features.work is None:
        return None
    busy = [0.0] * len(BUSY)
    calls = views = 0
    last = 0.0
    bytes_per_ms = gpu.bandwidth_bytes_per_second * 1e-3
    rates = {unit: sustained_flops(gpu, unit) * 1e-3 for unit in ("tensor", "tf32", "fp32")}
    for work in features.work:
        if work.kind == "view":
            views += work.calls
            continue
        calls += work.calls
        moving = (work.bytes + work.weight_bytes) / bytes_per_ms
        if not work.flops:
            busy[_PLACES.get(work.kind, _PLACES["elementwise"])] += moving
            continue
        term, unit = _TERMS[work.kind, work.element_bytes == 2]
        idle = max(1.0, gpu.num_sms * work.calls / max(1, work.tiles)) ** 0.4
        took = _PASSES * _longer(work.flops * idle / rates[unit], moving)
        busy[_PLACES[term]] += took
        last += took if work.kind.endswith("_nhwc") else 0.0
    trained = features.trainable_bytes or features.parameter_bytes or 0
    tensors = features.num_tensors or 0
    per_tensor = 3 + 3 * state_bytes(features) / max(1, trained)
    in_lists = bool(features.foreach)
    launches = per_tensor * (ceil(tensors / _TENSORS_OF_A_LAUNCH) if in_lists else tensors)
    busy[-3:] = [
        (3 * trained + 2 * state_bytes(features)) / bytes_per_ms,
        calls * _LAUNCH_MS,
        launches * _LAUNCH_MS,
    ]
    host = (calls * _OPERATOR_MS, views * _OPERATOR_MS, tensors * _OPERATOR_MS, launches * _OPERATOR_MS)
    convolutions = sum(busy[:3])
    return SpeedPoint(tuple(busy), host, last / convolutions if convolutions else 0.0)


def step_ms(busy: float, host: float) -> float:
    longer = max(busy, host, 1e-6)
    return float(longer * ((busy / longer) ** _SHARPNESS + (host / longer) ** _SHARPNESS) ** (1 / _SHARPNESS))


def _longer(computing: float, moving: float) -> float:
    """As `time.model.combine`."""
    return float((computing**3 + moving**3) ** (1 / 3))


def _term(kind: WorkKind, is_half: bool) -> tuple[str, str]:
    """Of `BUSY`, and what computes. Convolutions in fp32 use TF32 unless a script forbids it, products do not."""
    plain = kind.removesuffix("_nhwc")
    if plain == "grouped_convolution":
        return plain, "fp32"
    if plain == "attention":
        return plain, "tensor" if is_half else "fp32"
    if is_half:
        return f"{plain}_half", "tensor"
    return plain, "tf32" if plain == "convolution" else "fp32"


_COMPUTING: tuple[WorkKind, ...] = (
    "convolution", "convolution_nhwc", "grouped_convolution", "grouped_convolution_nhwc", "product", "attention",
)  # fmt: skip
_TERMS = {(kind, is_half): _term(kind, is_half) for kind in _COMPUTING for is_half in (False, True)}


__all__ = ["BUSY", "HOST", "SpeedPoint", "point_of", "step_ms"]
