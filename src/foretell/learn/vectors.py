"""A job's features as numbers for trees.

Those that depend on the batch only rise with it, or only fall, and the trees are trained to answer no less for it: so a
larger batch never gets a smaller estimate. All others are ratios in which the batch cancels out, rounded so that it
does. Sizes are shares, so that a job larger than any in training looks like the jobs that were there.
"""

from __future__ import annotations

from collections import Counter
from math import log, log2, prod

from foretell.features import JobFeatures
from foretell.formulas.own import NUM_FIXED, Depth, Point, depth_of
from foretell.formulas.workspaces import version_of
from foretell.records import Gpu

_KINDS = ("Conv2d", "BatchNorm2d", "Linear", "Dropout", "LayerNorm", "Embedding", "ReLU", "GELU")
_RISING = ("log_formula", "log_batch", "steps_of_20_mib", "log_convolution")
_FALLING = ("fixed_share", "earlier_share")
_SAME: dict[Depth, tuple[str, ...]] = {
    "complete": (
        "gradients", "states", "is_foreach", "zero_grad", "keeps_gradients", "optimizer", "largest_parameter",
        "saved_per_output", "forward_extra", "backward_extra", "largest", "second", "input",
        "convolution", "channels_in", "channels_out", "taps", "capability", "torch",
    ),
    "summary": ("gradients", "states", "optimizer", "largest", "second"),
}  # fmt: skip
_OTHERS = ("layers", *(f"share_{kind}" for kind in _KINDS), "grouped", "pointwise", "element_bytes", "tensors")
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "Adadelta", "Adafactor", "RAdam")
_ZERO_GRADS = {"before_forward": 0.0, "later": 0.0, "before_backward": 1.0, None: 0.0}
_MIB_20 = 20 << 20
_LARGEST_LOG = 25.5  # 110 GiB
_SMALLEST_RATIO = 2.0**-6
_NO_RATIO = -6.0
_NUMBERS = {name: number for number, name in enumerate(_OPTIMIZERS)}


def names(depth: Depth) -> tuple[str, ...]:
    return (*_RISING, *_FALLING, *_SAME[depth], *_OTHERS)


def constraints(depth: Depth) -> list[int]:
    """How the answer may follow each: 1, only up; -1, only down; 0, either way."""
    return [1 if name in _RISING else -1 if name in _FALLING else 0 for name in names(depth)]


def vector(features: JobFeatures, gpu: Gpu, point: Point) -> list[float]:
    """In the order of `names`; NaN stands for an unknown value."""
    layers, convolutions = features.layers or (), features.convolutions or ()
    parameters = features.parameter_bytes or 1
    fixed = point.terms[: NUM_FIXED[point.depth]]
    saved = features.saved_bytes or 0
    num_grouped = num_pointwise = most = 0
    channels = (0, 0, 0)
    for each in convolutions:
        size = each.element_bytes * (prod(each.x) + prod(each.y))
        taps = prod(each.w[2:])
        num_grouped += each.groups > 1
        num_pointwise += taps == 1
        if size > most:
            most, channels = size, (each.x[1], each.y[1], taps)
    found = [
        min(log(max(1, point.formula_bytes)), _LARGEST_LOG),
        log2(features.batch_size) if features.batch_size else float("nan"),
        min(float((features.largest_bytes or 0) // (_MIB_20 >> 2)), 16.0),
        min(log2(1 + most), 34.0),
        sum(fixed) / max(1.0, sum(point.terms)),
        min(1.0, (features.earlier_bytes or 0) / max(1, saved)) if point.depth == "complete" else 0.0,
        _ratio(fixed[2], parameters),
        _ratio(fixed[3], parameters),
    ]
    optimizer = float(_NUMBERS.get(features.optimizer or "", 1))
    if point.depth == "complete":
        found += [
            float(bool(features.foreach)),
            _ZERO_GRADS[features.zero_grad],
            float(bool(features.keeps_gradients)),
            optimizer,
            _ratio(features.largest_parameter_bytes or 0, parameters),
            _ratio(saved, features.output_bytes or 0),
            _ratio((features.forward_peak_bytes or 0) - saved, saved),
            _ratio((features.backward_peak_bytes or 0) - fixed[2] - saved, saved),
            _ratio(features.largest_bytes or 0, saved),
            _ratio(features.second_bytes or 0, saved),
            _ratio(features.input_bytes or 0, saved),
            _ratio(most, saved),
            *map(float, channels),
            gpu.compute_capability[0] + gpu.compute_capability[1] / 10,
            float(version_of(features.torch_version)[1]),
        ]
    else:
        total = sum(layer.activations for layer in layers)
        activations = [*sorted((layer.activations for layer in layers), reverse=True)[:2], 0, 0]
        found += [optimizer, _ratio(activations[0], total), _ratio(activations[1], total)]
    kinds = Counter([layer.kind for layer in layers])
    return [
        *found,
        log2(1 + len(layers)),
        *[kinds[kind] / max(1, len(layers)) for kind in _KINDS],
        num_grouped / max(1, len(convolutions)),
        num_pointwise / max(1, len(convolutions)),
        float(features.element_bytes or 4),
        log2(1 + (features.num_tensors or 0)),
    ]


def _ratio(size: float, whole: float) -> float:
    """As a logarithm, rounded: sizes of a scaled batch are whole bytes."""
    return round(log2(size / whole + _SMALLEST_RATIO), 1) if whole > 0 and size > 0 else _NO_RATIO


__all__ = ["constraints", "depth_of", "names", "vector"]
