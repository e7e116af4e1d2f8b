"""Boosted trees as plain arrays: written after training, evaluated without the library that trained them.

A model is a pair of files: `NAME.npz` with arrays (loaded with `allow_pickle=False`) and its card, `NAME.json`, with
the checksum of the arrays. NumPy is all that is needed.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell import disk
from foretell.errors import TraceError, UnsupportedError

SCHEMA = "foretell.model/1"
_LARGEST_FILE = 4 << 20
_ARRAYS = ("feature", "threshold", "left", "right", "value", "roots", "default_left")


def numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise UnsupportedError("learned estimates need NumPy: pip install 'foretell[guess]'.") from None
    return numpy


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
    """`path` without a suffix. The card is written last, with the checksum of the arrays."""
    np = numpy()
    content = io.BytesIO()
    arrays = {f"{name}.{array}": getattr(each, array) for name, each in trees.items() for array in _ARRAYS}
    np.savez_compressed(content, **arrays)
    data = content.getvalue()
    depths = {name: each.depth for name, each in trees.items()}
    full = {"schema": SCHEMA, "sha256": hashlib.sha256(data).hexdigest(), "depths": depths, **card}
    disk.write(path.with_suffix(".npz"), data, is_private=False)
    disk.write(path.with_suffix(".json"), json.dumps(full, indent=1) + "\n", is_private=False)


def load(path: Path) -> tuple[dict[str, Trees], dict[str, Any]]:
    """Refuses arrays that are not those of the card."""
    np = numpy()
    try:
        card = json.loads(path.with_suffix(".json").read_text("utf-8"))
        data = path.with_suffix(".npz").read_bytes()
        if not isinstance(card, dict) or card.get("schema") != SCHEMA:
            raise ValueError(f"its card is not of the schema {SCHEMA}")
        if len(data) > _LARGEST_FILE:
            raise ValueError(f"it has {len(data)} bytes, and a model at most {_LARGEST_FILE}")
        if hashlib.sha256(data).hexdigest() != card["sha256"]:
            raise ValueError("its arrays are not those that its card describes: the file was changed or is damaged")
        arrays = np.load(io.BytesIO(data), allow_pickle=False)
        trees = {
            name: Trees(**{array: arrays[f"{name}.{array}"] for array in _ARRAYS}, depth=int(depth))
            for name, depth in card["depths"].items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TraceError(f"cannot use the model {path.with_suffix('.npz')}: {reason}.") from None
    return trees, card
