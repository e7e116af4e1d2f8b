"""SchedTune (Albahar et al., CCGrid 2022): an ensemble of trees on sizes of the job and properties of the card.

Its inputs are those of `formulas.published.schedtune_features`; the trees are LightGBM's, trained here on log(reserved
bytes). What it leaves out: the optimizer, the precision, types of layers, what autograd saves, and workspaces. Trees
answer with averages of what they were trained on, so a job larger than all of those is called as large as the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

from foretell.errors import UsageError
from foretell.features import Guess, JobFeatures
from foretell.formulas.published import schedtune_features
from foretell.learn import trees
from foretell.learn.arrays import cannot_use
from foretell.learn.train import Labelled, lightgbm
from foretell.plain import from_plain
from foretell.records import Gpu

NAME = "schedtune"
INPUTS = (
    "parameters", "layers", "activations", "batch_size", "input_size", "gpu_total_bytes", "gpu_num_sms",
    "gpu_bandwidth", "gpu_fp32_flops",
)  # fmt: skip
FEWEST_ROWS = 30
_PARAMETERS = {
    "objective": "regression_l1", "learning_rate": 0.06, "num_leaves": 31, "min_data_in_leaf": 5, "lambda_l2": 0.5,
    "bagging_fraction": 0.8, "bagging_freq": 1, "verbosity": -1, "num_threads": 1, "seed": 0, "deterministic": True,
    "force_row_wise": True,
}  # fmt: skip
_ROUNDS = 300
_LARGEST_LOG = 35.0
"""1.6 PB: more is damage."""


@dataclass(frozen=True, eq=False)
class SchedTune:
    model: trees.Trees
    largest_bytes: int
    """The largest job of its training."""
    name: str = NAME

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        inputs = schedtune_features(features, gpu)
        if inputs is None:
            return None
        log = float(self.model.predict([inputs])[0])
        num_bytes = int(exp(min(max(log, 0.0), _LARGEST_LOG)))
        is_beyond = num_bytes > 0.9 * self.largest_bytes
        notes = ("near the largest job of its training: it never answers more",) if is_beyond else ()
        return Guess(estimator=self.name, reserved_bytes=num_bytes, notes=notes)


def train(rows: Sequence[Labelled]) -> SchedTune:
    np, library = trees.numpy(), lightgbm()
    known = [(inputs, row) for row in rows if (inputs := schedtune_features(row.features, row.gpu)) is not None]
    if len(known) < FEWEST_ROWS:
        raise UsageError(f"SchedTune needs {FEWEST_ROWS} or more jobs with layers and a batch size, not {len(known)}.")
    target = np.log([max(row.reserved_bytes, 1) for _, row in known])
    data = library.Dataset(np.array([inputs for inputs, _ in known]), label=target, feature_name=list(INPUTS))
    model = trees.from_lightgbm(library.train(_PARAMETERS, data, num_boost_round=_ROUNDS))
    return SchedTune(model, max(row.reserved_bytes for _, row in known))


def save(path: Path, trained: SchedTune, about: dict[str, Any]) -> None:
    card = {
        "method": NAME, "features": {NAME: list(INPUTS)}, "largest_bytes": trained.largest_bytes, "data": about,
        "software": {"lightgbm": lightgbm().__version__, "parameters": _PARAMETERS, "rounds": _ROUNDS},
    }  # fmt: skip
    trees.save(path, {NAME: trained.model}, card)


def read(path: Path) -> SchedTune:
    found, whole_card = trees.load(path)
    try:
        card = from_plain(_Card, {name: whole_card.get(name) for name in ("features", "largest_bytes")})
        if NAME not in found or card.features.get(NAME) != INPUTS:
            raise ValueError("it was trained on other inputs than this foretell computes")
    except ValueError as error:
        raise cannot_use(path, error) from None
    return SchedTune(found[NAME], card.largest_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    features: dict[str, tuple[str, ...]]
    largest_bytes: int
