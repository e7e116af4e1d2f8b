"""Boosted trees as plain arrays (`arrays.py`): written after training, evaluated without the library that trained them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.learn import arrays
from foretell.learn.arrays import numpy
from foretell.plain import from_plain

__all__ = ["Trees", "from_lightgbm", "load", "numpy", "save"]

_DEEPEST = 1000
_ARRAYS = ("feature", "threshold", "left", "right", "value", "roots", "default_left")


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes of all trees in one table. A leaf has itself as both children."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    value: Any
    roots: Any
    default_left: Any
    """Where NaN goes."""
    depth: int

    def predict(self, rows: Any) -> Any:
        """The sum of the leaves that each row reaches: all trees of a row go down one level at a time."""
        np = numpy()
        rows = np.asarray(rows, dtype=np.float64)
        nodes = np.repeat(self.roots[None, :], len(rows), axis=0)
        index = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            values = rows[index, self.feature[nodes]]
            goes_left = np.where(np.isnan(values), self.default_left[nodes], values <= self.threshold[nodes])
            nodes = np.where(goes_left, self.left[nodes], self.right[nodes])
        return self.value[nodes].sum(axis=1)


def from_lightgbm(booster: Any) -> Trees:
    np = numpy()
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[float] = []
    default_left: list[bool] = []

    def add(node: dict[str, Any], depth: int) -> tuple[int, int]:
        number = len(feature)
        is_leaf = "leaf_value" in node
        feature.append(0 if is_leaf else node["split_feature"])
        threshold.append(0.0 if is_leaf else node["threshold"])
        value.append(node["leaf_value"] if is_leaf else 0.0)
        default_left.append(bool(node.get("default_left", True)))
        left.append(number)
        right.append(number)
        if is_leaf:
            return number, depth
        left[number], deep_left = add(node["left_child"], depth + 1)
        right[number], deep_right = add(node["right_child"], depth + 1)
        return number, max(deep_left, deep_right)

    roots, deepest = [], 0
    for tree in booster.dump_model()["tree_info"]:
        root, depth = add(tree["tree_structure"], 0)
        roots.append(root)
        deepest = max(deepest, depth)
    return Trees(
        feature=np.array(feature, np.int16), threshold=np.array(threshold, np.float64), left=np.array(left, np.int32),
        right=np.array(right, np.int32), value=np.array(value, np.float32), roots=np.array(roots, np.int32),
        default_left=np.array(default_left), depth=deepest,
    )  # fmt: skip


def save(path: Path, trees: dict[str, Trees], card: dict[str, Any]) -> None:
    """`path` without a suffix."""
    plain = {f"{name}.{array}": getattr(each, array) for name, each in trees.items() for array in _ARRAYS}
    arrays.save(path, plain, {"depths": {name: each.depth for name, each in trees.items()}, **card})


def load(path: Path) -> tuple[dict[str, Trees], dict[str, Any]]:
    """Refuses arrays that are not those of the card, and any that `Trees.predict` could not use."""
    np = numpy()
    found, card = arrays.load(path)
    try:
        plain = from_plain(_Card, {name: card.get(name, {}) for name in ("depths", "features")})
        trees: dict[str, Trees] = {}
        for name, depth in plain.depths.items():
            if missing := [array for array in _ARRAYS if f"{name}.{array}" not in found]:
                raise ValueError(f"it has no arrays {', '.join(missing)} of {name}")
            trees[name] = Trees(**{array: found[f"{name}.{array}"] for array in _ARRAYS}, depth=depth)
            _check(trees[name], len(plain.features.get(name, ())), np)
    except ValueError as error:
        raise arrays.cannot_use(path, error) from None
    return trees, card


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    depths: dict[str, int]
    features: dict[str, tuple[str, ...]]


def _check(trees: Trees, num_features: int, np: Any) -> None:
    count = np.size(trees.feature)
    ranges = (("feature", num_features), ("left", count), ("right", count), ("roots", count))
    for name in _ARRAYS:
        array = getattr(trees, name)
        kinds = {"default_left": "b", "threshold": "f", "value": "f"}.get(name, "iu")
        is_list = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in kinds
        if not is_list or (name != "roots" and len(array) != count):
            raise ValueError(f"its array {name} has another shape or type than that of a model")
    for name, end in ranges:
        array = getattr(trees, name)
        if len(array) and not 0 <= array.min() <= array.max() < end:
            raise ValueError(f"its array {name} has a number outside of 0 to {end - 1}")
    if not 0 <= trees.depth <= _DEEPEST or not np.isfinite(trees.value).all():
        raise ValueError(f"its trees have the depth {trees.depth}, or values that are not finite")
