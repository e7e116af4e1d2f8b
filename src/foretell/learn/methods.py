"""The published estimators that have to be trained: by name, from files, and in a cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from foretell.errors import TraceError, UsageError
from foretell.features import Guess
from foretell.formulas import Estimator
from foretell.learn import arrays
from foretell.learn.classes import folds

Method = Literal["gpumemnet", "schedtune", "dnnperf"]
METHODS: tuple[Method, ...] = get_args(Method)
OWN = "foretell"


def method_of(path: Path) -> str:
    """What a model of `foretell train` was trained as, by its card."""
    path = path.with_suffix("")
    try:
        return str(arrays.read_card(path).get("method", OWN))[:50]
    except (OSError, ValueError) as error:
        raise arrays.cannot_use(path, error) from None


def read(path: Path) -> Estimator:
    """A model of `foretell train --method`; with or without a suffix."""
    method = method_of(path)
    path = path.with_suffix("")
    if method == "gpumemnet":
        _need_torch(method)
        from foretell.learn import gpumemnet

        return gpumemnet.read(path)
    if method == "schedtune":
        from foretell.learn import schedtune

        return schedtune.read(path)
    if method == "dnnperf":
        _need_torch(method)
        from foretell.learn import dnnperf

        return dnnperf.read(path)
    raise TraceError(f"cannot use the model {path}: it is of the method {method!r}. Known: {', '.join(METHODS)}.")


def held_out(
    groups: Sequence[str],
    num_folds: int,
    train: Callable[[list[int]], Estimator | None],
    guess: Callable[[Estimator, int], Guess | None],
    *,
    seed: int = 0,
) -> list[Guess | None]:
    """The guess for each example, by an estimator that was trained, from scratch, on other groups alone. `train` and
    `guess` get positions in `groups`."""
    found: list[Guess | None] = [None] * len(groups)
    parts = folds(groups, num_folds, seed=seed)
    for fold in range(num_folds):
        trained = train([i for i, part in enumerate(parts) if part != fold])
        for i in (i for i, part in enumerate(parts) if part == fold):
            found[i] = None if trained is None else guess(trained, i)
    return found


def _need_torch(method: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError(f"{method} needs torch: pip install torch.") from None


def counted(rows: Sequence[Any]) -> dict[str, Any]:
    """What a model was trained on, for its card."""
    from collections import Counter

    names = ("kind", "gpu", "torch", "source")
    return {"jobs": len(rows), **{name: dict(Counter(str(getattr(row, name)) for row in rows)) for name in names}}
