"""foretell's own formula: reserved memory as a sum of physical terms with fitted coefficients, for each family.

Reserved memory is nearer to the sum of the phases of a step than to the largest of them, because blocks that the
backward pass frees do not fit what the optimizer asks for; how near, the coefficients say. They are not negative, so
more of anything never means less memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from foretell.features import JobFeatures
from foretell.formulas.model_states import least_bytes, state_bytes
from foretell.formulas.workspaces import workspaces
from foretell.records import Gpu
from foretell.units import MIB

Depth = Literal["complete", "summary"]
TERMS: dict[Depth, tuple[str, ...]] = {
    "complete": (
        "constant", "parameters", "gradients", "states", "foreach", "saved", "forward", "backward", "workspace",
        "workspaces", "largest", "input",
    ),
    "summary": ("constant", "parameters", "gradients", "states", "activations", "largest", "second"),
}  # fmt: skip
_FILE = Path(__file__).with_name("fitted.json")
_used: dict[str, dict[str, tuple[float, ...]]] = {}
"""Read from the file when first needed."""


def depth_of(features: JobFeatures) -> Depth:
    return "complete" if features.is_complete else "summary"


def terms(features: JobFeatures, gpu: Gpu) -> list[float]:
    """The terms of `TERMS` in bytes. Raises a ValueError if not even a summary is known."""
    trained = features.trainable_bytes if features.trainable_bytes is not None else features.parameter_bytes
    if features.parameter_bytes is None or trained is None or features.layers is None:
        raise ValueError("a guess needs at least the parameters and the layers' activations")
    states = state_bytes(features)
    fixed = [float(MIB), features.parameter_bytes + (features.buffer_bytes or 0), trained, states]
    if not features.is_complete:
        sizes = sorted((4 * layer.activations for layer in features.layers), reverse=True)
        return [*map(float, (*fixed, sum(sizes), sum(sizes[:1]), sum(sizes[1:2])))]
    saved, used = features.saved_bytes or 0, workspaces(features, gpu)
    # While a convolution runs backward: what was saved before it, gradients so far, both of its gradients, workspace.
    within = [
        call.saved_bytes + call.gradient_bytes + call.element_bytes * (_size(call.x) + _size(call.y)) + workspace
        for call, workspace in zip(features.convolutions or (), used, strict=True)
    ]
    backward = max([features.backward_peak_bytes or 0, *within])
    first, second = [*sorted(used, reverse=True), 0, 0][:2]
    return [
        *map(float, fixed),
        float(trained if features.foreach else 0),
        float(saved),
        float(max((features.forward_peak_bytes or 0) - saved, 0)),
        float(max(backward - saved - trained, 0)),
        float(first),
        float(second),
        float(features.largest_bytes or 0),
        float(features.input_bytes or 0),
    ]


def formula_bytes(features: JobFeatures, gpu: Gpu) -> int:
    weights = coefficients()[depth_of(features)][features.family]
    total = sum(weight * term for weight, term in zip(weights, terms(features, gpu), strict=True))
    return max(int(total), least_bytes(features))


def coefficients() -> dict[str, dict[str, tuple[float, ...]]]:
    if not _used:
        use(json.loads(_FILE.read_text("utf-8"))["coefficients"])
    return _used


def use(given: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Use other coefficients in this process: by depth, family and term."""
    for depth, names in TERMS.items():
        _used[depth] = {family: tuple(row[name] for name in names) for family, row in given[depth].items()}


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for each in shape:
        total *= each
    return total
