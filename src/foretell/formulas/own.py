"""foretell's own formula: reserved memory as a sum of physical terms with fitted coefficients, for each family.

Reserved memory is nearer to the sum of the phases of a step than to the largest of them, because blocks that the
backward pass frees do not fit what the optimizer asks for; how near, the coefficients say. They are not negative, so
more of anything never means less memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        "constant", "parameters", "gradients", "states", "foreach", "largest_parameter", "held_gradients", "played",
        "saved", "forward", "backward", "workspace", "largest", "second", "input",
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
    holds_gradients = features.zero_grad == "before_backward" or features.keeps_gradients
    return [
        *map(float, fixed),
        float(trained if features.foreach else 0),
        float(features.largest_parameter_bytes or 0),
        float(trained if holds_gradients else 0),
        played(features, gpu, used),
        float(saved),
        float(max((features.forward_peak_bytes or 0) - saved, 0)),
        float(max((features.backward_peak_bytes or 0) - trained, saved)),
        float(max(used, default=0)),
        float(features.largest_bytes or 0),
        float(features.second_bytes or 0),
        float(features.input_bytes or 0),
    ]


def played(features: JobFeatures, gpu: Gpu, used: list[int]) -> float:
    """Reserved by a step that was played. Workspaces of another card than the one described count in proportion, by the
    proportion at the batch that was played: it may fall when the batch grows."""
    without = float(features.played_bytes or 0)
    if not any(used) or features.played_workspace_bytes is None or features.compute_capability is None:
        return without + max(used, default=0)
    more = features.played_workspace_bytes - without
    if features.compute_capability == gpu.compute_capability:
        return without + more
    card, batch_size = replace(gpu, compute_capability=features.compute_capability), features.played_batch_size
    if batch_size is not None and batch_size != features.batch_size:
        features = features.with_batch(batch_size)
    described = max(workspaces(features, card), default=0)
    return without + (more * max(workspaces(features, gpu)) / described if described else max(used))


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
