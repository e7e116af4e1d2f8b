"""foretell's own formula: reserved memory as a sum of physical terms with fitted coefficients, for each family.

Reserved memory is nearer to the sum of the phases of a step than to the largest of them, because blocks that the
backward pass frees do not fit what the optimizer asks for; how near, the coefficients say. They are not negative, so
more of anything never means less memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from operator import mul
from pathlib import Path
from typing import Literal, get_args

from foretell.features import JobFeatures
from foretell.formulas.model_states import least_bytes, state_bytes
from foretell.formulas.workspaces import workspaces
from foretell.records import Gpu
from foretell.units import MIB

Depth = Literal["complete", "summary"]
TERMS: dict[Depth, tuple[str, ...]] = {
    "complete": (
        "constant", "parameters", "gradients", "states", "foreach", "largest_parameter", "held_gradients", "saved",
        "forward", "backward", "saved_or_gradients", "saved_or_states", "saved_or_parameter", "workspace", "workspaces",
        "workspace_or_gradients", "largest", "second", "input",
    ),
    "summary": ("constant", "parameters", "gradients", "states", "activations", "largest", "second"),
}  # fmt: skip
NUM_FIXED: dict[Depth, int] = {"complete": 7, "summary": 4}
"""So many terms come first that do not depend on the batch."""
Group = Literal["mlp", "cnn", "transformer", "language"]
GROUPS: tuple[Group, ...] = get_args(Group)
_FEWEST_WORDS = 1000
_FILE = Path(__file__).with_name("fitted.json")
_used: dict[str, dict[str, tuple[float, ...]]] = {}
"""Read from the file when first needed."""


@dataclass(frozen=True, slots=True)
class Point:
    """What estimators compute of a job, once."""

    depth: Depth
    group: Group
    terms: list[float]
    """Those of `TERMS`, in bytes."""
    formula_bytes: int
    least_bytes: int


def depth_of(features: JobFeatures) -> Depth:
    return "complete" if features.is_complete else "summary"


def point_of(features: JobFeatures, gpu: Gpu) -> Point:
    """Raises a ValueError if not even a summary is known."""
    depth, group = depth_of(features), group_of(features)
    values, least = terms(features, gpu, depth), least_bytes(features)
    total = sum(map(mul, coefficients()[depth][group], values))
    return Point(depth, group, values, max(int(total), least), least)


def group_of(features: JobFeatures) -> Group:
    """The family, and of transformers those with many outputs for each token, where the loss decides the peak."""
    family = features.family
    if family != "transformer" or not features.layers or not features.input_shape:
        return family
    tokens = prod(features.input_shape[:2])
    is_language = len(features.input_shape) == 2 and features.layers[-1].activations >= _FEWEST_WORDS * tokens
    return "language" if is_language else family


def terms(features: JobFeatures, gpu: Gpu, depth: Depth | None = None) -> list[float]:
    """The terms of `TERMS` in bytes. None falls when the batch grows. Raises a ValueError if not even a summary is
    known."""
    trained = features.trainable_bytes if features.trainable_bytes is not None else features.parameter_bytes
    if features.parameter_bytes is None or trained is None or features.layers is None:
        raise ValueError("a guess needs at least the parameters and the layers' activations")
    fixed = [MIB, features.parameter_bytes + (features.buffer_bytes or 0), trained, state_bytes(features)]
    if (depth or depth_of(features)) == "summary":
        sizes = sorted((4 * layer.activations for layer in features.layers), reverse=True)
        return [*map(float, (*fixed, sum(sizes), sum(sizes[:1]), sum(sizes[1:2])))]
    saved, used = features.saved_bytes or 0, workspaces(features, gpu)
    backward = (features.backward_peak_bytes or 0) - trained
    for call, workspace in zip(features.convolutions or (), used, strict=True):
        # While it runs backward: what was saved before it, gradients so far, both of its gradients, workspace.
        within = call.saved_bytes + call.gradient_bytes + call.element_bytes * (prod(call.x) + prod(call.y)) + workspace
        backward = max(backward, within - trained)
    first, second = [*sorted(used, reverse=True), 0, 0][:2]
    holds_gradients = features.zero_grad == "before_backward" or features.keeps_gradients
    return [
        *map(float, fixed),
        float(trained if features.foreach else 0),
        float(features.largest_parameter_bytes or 0),
        float(trained if holds_gradients else 0),
        float(saved),
        float(max((features.forward_peak_bytes or 0) - saved, 0)),
        float(max(backward, saved)),
        # What the backward pass frees, the optimizer takes, as far as its blocks fit.
        float(max(saved, trained)),
        float(max(saved, fixed[3])),
        float(max(saved, features.largest_parameter_bytes or 0)),
        float(first),
        float(second),
        float(max(first, trained)),
        float(features.largest_bytes or 0),
        float(features.second_bytes or 0),
        float(features.input_bytes or 0),
    ]


def formula_bytes(features: JobFeatures, gpu: Gpu) -> int:
    return point_of(features, gpu).formula_bytes


def coefficients() -> dict[str, dict[str, tuple[float, ...]]]:
    if not _used:
        use(json.loads(_FILE.read_text("utf-8"))["coefficients"])
    return _used


def use(given: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Use other coefficients in this process: by depth, family and term."""
    for depth, names in TERMS.items():
        found = {group: tuple(row[name] for name in names) for group, row in given[depth].items()}
        _used[depth] = {"language": found["transformer"], **found}
