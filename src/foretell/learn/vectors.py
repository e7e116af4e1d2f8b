"""A job's features as numbers for trees.

Those that depend on the batch only rise with it, or only fall, and the trees are trained to answer no less for it: so a
larger batch never gets a smaller estimate. All others are ratios in which the batch cancels out, rounded so that it
does. Sizes are shares, so that a job larger than any in training looks like the jobs that were there.
"""

from __future__ import annotations

from collections import Counter
from math import log, log2, prod

from foretell.features import ConvolutionCall, JobFeatures
from foretell.formulas.own import NUM_FIXED, Depth, Point, depth_of
from foretell.formulas.workspaces import workspace_of
from foretell.records import Gpu
from foretell.versions import NEWEST_TORCH, parse_version

_KINDS = ("Conv2d", "BatchNorm2d", "Linear", "Dropout", "LayerNorm", "Embedding", "ReLU", "GELU")
_RISING = ("log_formula", "log_batch", "steps_of_20_mib", "log_convolution")
_FALLING = ("fixed_share", "earlier_share")
_SAME: dict[Depth, tuple[str, ...]] = {
    "complete": (
        "gradients", "states", "is_foreach", "zero_grad", "keeps_gradients", "optimizer", "largest_parameter",
        "saved_per_output", "forward_extra", "backward_extra", "largest", "second", "input", "convolution_1",
        "convolution_2", "convolution_3", "channels_in", "channels_out", "taps", "filters", "workspace_ratio",
        "capability", "torch",
    ),
    "summary": ("gradients", "states", "optimizer", "largest", "second"),
}  # fmt: skip
_OTHERS = ("layers", *(f"share_{kind}" for kind in _KINDS), "grouped", "pointwise", "element_bytes", "tensors")
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "Adadelta", "Adafactor", "RAdam")
_ZERO_GRADS = {"before_forward": 0.0, "later": 0.0, "before_backward": 1.0, None: 0.0}
_MIB_20 = 20 << 20
_LARGEST_LOG = 25.5  # 110 GiB
_USUAL_BATCH = 32


def names(depth: Depth) -> tuple[str, ...]:
    return (*_RISING, *_FALLING, *_SAME[depth], *_OTHERS)


def constraints(depth: Depth) -> list[int]:
    """How the answer may follow each: 1, only up; -1, only down; 0, either way."""
    return [1 if name in _RISING else -1 if name in _FALLING else 0 for name in names(depth)]


def vector(features: JobFeatures, gpu: Gpu, point: Point) -> list[float]:
    """In the order of `names`; NaN stands for an unknown value."""
    layers, convolutions = features.layers or (), features.convolutions or ()
    parameters = max(1, features.parameter_bytes or 0)
    fixed = point.terms[: NUM_FIXED[point.depth]]
    saved = features.saved_bytes or 0
    sizes = sorted(
        ((each.element_bytes * (prod(each.x) + prod(each.y)), i) for i, each in enumerate(convolutions)), reverse=True
    )[:3]
    largest = convolutions[sizes[0][1]] if sizes else None
    kinds = Counter(layer.kind for layer in layers)
    found = [
        min(log(max(1, point.formula_bytes)), _LARGEST_LOG),
        log2(features.batch_size) if features.batch_size else float("nan"),
        min(float((features.largest_bytes or 0) // (_MIB_20 >> 2)), 16.0),
        min(log2(1 + sizes[0][0]), 34.0) if sizes else 0.0,
        sum(fixed) / max(1.0, sum(point.terms)),
        min(1.0, (features.earlier_bytes or 0) / max(1, saved)) if point.depth == "complete" else 0.0,
        _ratio(fixed[2], parameters),
        _ratio(fixed[3], parameters),
    ]
    optimizer = float(_OPTIMIZERS.index(features.optimizer)) if features.optimizer in _OPTIMIZERS else 1.0
    if point.depth == "complete":
        found += [
            float(bool(features.foreach)),
            _ZERO_GRADS[features.zero_grad],
            float(bool(features.keeps_gradients)),
            optimizer,
            _ratio(features.largest_parameter_bytes or 0, parameters),
            _ratio(saved, features.output_bytes or 0),
            _ratio(max((features.forward_peak_bytes or 0) - saved, 0), saved),
            _ratio(max((features.backward_peak_bytes or 0) - fixed[2] - saved, 0), saved),
            *(_ratio(each or 0, saved) for each in (features.largest_bytes, features.second_bytes)),
            _ratio(features.input_bytes or 0, saved),
            *(_ratio(size, saved) for size, _ in sizes),
            *(0.0 for _ in range(3 - len(sizes))),
            *_shape(largest, gpu, features, parameters),
            gpu.compute_capability[0] + gpu.compute_capability[1] / 10,
            float((parse_version(features.torch_version) or NEWEST_TORCH)[1]),
        ]
    else:
        total = max(1, sum(layer.activations for layer in layers))
        activations = [*sorted((layer.activations for layer in layers), reverse=True)[:2], 0, 0]
        found += [optimizer, _ratio(activations[0], total), _ratio(activations[1], total)]
    return [
        *found,
        log2(1 + len(layers)),
        *(kinds[kind] / max(1, len(layers)) for kind in _KINDS),
        sum(each.groups > 1 for each in convolutions) / max(1, len(convolutions)),
        sum(prod(each.w[2:]) == 1 for each in convolutions) / max(1, len(convolutions)),
        float(features.element_bytes or 4),
        log2(1 + (features.num_tensors or 0)),
    ]


def _ratio(size: float, whole: float) -> float:
    """Rounded: sizes of a scaled batch are whole bytes."""
    return float(f"{min(size / whole, 1e6):.3g}") if whole else 0.0


def _shape(call: ConvolutionCall | None, gpu: Gpu, features: JobFeatures, parameters: int) -> tuple[float, ...]:
    """Of the largest convolution: channels, taps, its filters, and the workspace by rule for a usual batch."""
    if call is None or len(call.x) < 3:
        return (0.0,) * 5
    usual = ConvolutionCall(
        x=(_USUAL_BATCH, *call.x[1:]), y=(_USUAL_BATCH, *call.y[1:]), w=call.w, stride=call.stride,
        padding=call.padding, dilation=call.dilation, groups=call.groups, is_transposed=call.is_transposed,
        is_channels_last=call.is_channels_last, element_bytes=call.element_bytes, saved_bytes=0, gradient_bytes=0,
    )  # fmt: skip
    version = parse_version(features.torch_version) or NEWEST_TORCH
    workspace = workspace_of(usual, gpu.compute_capability, version)
    whole = call.element_bytes * (prod(usual.x) + prod(usual.y) + prod(usual.w))
    return (
        float(call.x[1]),
        float(call.y[1]),
        float(prod(call.w[2:])),
        _ratio(call.element_bytes * prod(call.w), parameters),
        _ratio(workspace, whole),
    )


__all__ = ["constraints", "depth_of", "names", "vector"]
