"""A job's features as numbers for trees: shares of the formula, so that a job larger than any in training looks like
the jobs that were there."""

from __future__ import annotations

from math import log, log2

from foretell.features import JobFeatures
from foretell.formulas.own import TERMS, Depth, depth_of, formula_bytes, terms
from foretell.records import Gpu

_KINDS = ("Conv2d", "BatchNorm2d", "Linear", "Dropout", "LayerNorm", "Embedding", "ReLU", "GELU")
_OTHERS = (
    "log_formula", "log_batch", "layers", *(f"share_{kind}" for kind in _KINDS), "grouped", "pointwise",
    "element_bytes", "tensors", "output_share", "second_output_share", "steps_of_20_mib", "largest_parameter_share",
)  # fmt: skip
_MIB_20 = 20 << 20


def names(depth: Depth) -> tuple[str, ...]:
    return (*(f"{term}_share" for term in TERMS[depth]), *_OTHERS)


def vector(features: JobFeatures, gpu: Gpu) -> list[float]:
    """In the order of `names`; NaN stands for an unknown value."""
    formula = formula_bytes(features, gpu)
    layers = features.layers or ()
    convolutions = features.convolutions or ()
    largest = features.largest_bytes or 0
    return [
        *(term / formula for term in terms(features, gpu)),
        min(log(formula), 25.5),  # 110 GiB
        log2(features.batch_size) if features.batch_size else float("nan"),
        log2(1 + len(layers)),
        *(sum(layer.kind == kind for layer in layers) / max(1, len(layers)) for kind in _KINDS),
        sum(each.groups > 1 for each in convolutions) / max(1, len(convolutions)),
        sum(set(each.w[2:]) == {1} for each in convolutions) / max(1, len(convolutions)),
        float(features.element_bytes or 4),
        log2(1 + (features.num_tensors or 0)),
        (features.output_bytes or 0) / formula,
        (features.second_bytes or 0) / formula,
        min(largest / _MIB_20, 8.0),
        (features.largest_parameter_bytes or 0) / formula,
    ]


__all__ = ["depth_of", "names", "vector"]
