"""Memory as classes of equal width, folds of a cross-validation, and the scores of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from foretell.errors import UnsupportedError, UsageError
from foretell.features import Family, JobFeatures
from foretell.units import GIB

CLASS_BYTES: dict[Family, int] = {"mlp": GIB, "cnn": 8 * GIB, "transformer": 8 * GIB}
"""Widths of GPUMemNet's classes: its papers' 1 GB and 8 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A job and the memory it took."""

    features: JobFeatures
    num_bytes: int
    is_oom: bool = False
    """It ran out of memory: `num_bytes` is the level it reached, not its need."""
    group: str
    """Examples of one group are never both in training and in a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Of a classifier on jobs it was not trained on. Precision, recall and F1 are weighted by the size of the class."""

    num_jobs: int
    accuracy: float
    precision: float
    recall: float
    f1: float
    too_low: float
    """Share of jobs whose class is below the true one."""
    confusion: tuple[tuple[int, ...], ...]
    """Jobs by true class (rows) and answer (columns)."""


def classes_of(examples: Sequence[Example], class_bytes: int) -> list[int]:
    """Running out of memory is a class of its own, above all others."""
    fitting = [each.num_bytes // class_bytes for each in examples if not each.is_oom]
    top = max(fitting, default=-1) + 1
    return [top if each.is_oom else each.num_bytes // class_bytes for each in examples]


def folds(groups: Sequence[str], num: int, *, seed: int = 0) -> list[int]:
    """The fold of each example, as even as whole groups allow. The same groups always give the same folds."""
    if num < 2:
        raise UsageError(f"{num} folds: a cross-validation needs 2 or more.")
    sizes = dict.fromkeys(groups, 0)
    for group in groups:
        sizes[group] += 1
    if len(sizes) < num:
        raise UsageError(f"{len(sizes)} groups of jobs cannot be divided into {num} folds.")
    of_group: dict[str, int] = {}
    filled = [0] * num
    for group in sorted(sizes, key=lambda each: (-sizes[each], crc32(f"{seed}/{each}".encode()), each)):
        emptiest = min(range(num), key=lambda fold: filled[fold])
        of_group[group] = emptiest
        filled[emptiest] += sizes[group]
    return [of_group[group] for group in groups]


def scores(truth: Sequence[int], answers: Sequence[int]) -> Scores:
    metrics = sklearn("metrics")
    known = list(range(max(*truth, *answers) + 1))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        truth, answers, average="weighted", zero_division=0
    )
    return Scores(
        num_jobs=len(truth),
        accuracy=float(metrics.accuracy_score(truth, answers)),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
        too_low=sum(answer < true for true, answer in zip(truth, answers, strict=True)) / len(truth),
        confusion=tuple(map(tuple, metrics.confusion_matrix(truth, answers, labels=known).tolist())),
    )


def sklearn(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        raise UnsupportedError("this needs scikit-learn: pip install 'foretell[train]'.") from None
