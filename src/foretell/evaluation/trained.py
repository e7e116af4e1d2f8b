"""The published estimators that have to be trained, on measured runs: each run is judged by one that was trained on
other models, in a cross-validation over the very runs that are judged. That is how their papers judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretell import gpus
from foretell.errors import UsageError
from foretell.evaluation.records import Case
from foretell.features import Guess, JobFeatures
from foretell.formulas import Estimator
from foretell.learn.classes import Example, folds
from foretell.learn.dataset import Row
from foretell.learn.draws import head_of
from foretell.learn.methods import Method
from foretell.learn.train import Labelled
from foretell.records import Gpu

FOLDS = 3
_DRAWN_ALONE = ("[", "mlp", "cnn", "encoder")
"""How groups begin whose jobs share no architecture: the draw itself, or a set of measured runs."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """For each run, by its key, the estimator that has not seen it."""

    name: str
    estimators: dict[str, Estimator]
    problems: tuple[str, ...] = ()
    """Why there is none for some runs."""

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        estimator = self.estimators.get(features.name)
        return None if estimator is None else estimator.guess(features, gpu)


def held_out(
    method: Method,
    cases: Sequence[Case],
    jobs: dict[str, JobFeatures | str],
    reserved_bytes: Callable[[Case, JobFeatures], int],
    *,
    num_folds: int = FOLDS,
    on_fold: Callable[[], None] = lambda: None,
) -> HeldOut:
    """GPUMemNet knows nothing of the card, so it is trained on each set alone, on the measured bytes; the others are
    trained on all sets together, on `reserved_bytes` of runs that fit."""
    known = [(case, job) for case in cases if isinstance(job := jobs[case.key], JobFeatures)]
    parts = [known]
    if method == "gpumemnet":
        parts = [[each for each in known if each[0].set == name] for name in dict.fromkeys(case.set for case in cases)]
    estimators: dict[str, Estimator] = {}
    problems = []
    for part in parts:
        try:
            numbers = folds([group_of(case) for case, _ in part], num_folds)
            for fold in range(num_folds):
                training = [each for each, number in zip(part, numbers, strict=True) if number != fold]
                trained = _trained(method, training, reserved_bytes)
                tested = [each for each, number in zip(part, numbers, strict=True) if number == fold]
                estimators |= {case.key: trained for case, _ in tested}
                on_fold()
        except UsageError as error:
            sets = ", ".join(dict.fromkeys(case.set for case, _ in part))
            problems.append(f"{method} cannot be trained on {sets or 'no run'}: {error}")
    return HeldOut(method, estimators, tuple(problems))


def num_trainings(method: Method, cases: Sequence[Case], *, num_folds: int = FOLDS) -> int:
    return num_folds * (len({case.set for case in cases}) if method == "gpumemnet" else 1)


def group_of(case: Case) -> str:
    """Runs of sister models are never both in training and in a test: `resnet`. Other runs are drawn one by one."""
    return head_of(_model_of(case) or str(case.factors.get("model", ""))) or case.key


def _trained(
    method: Method, known: Sequence[tuple[Case, JobFeatures]], reserved_bytes: Callable[[Case, JobFeatures], int]
) -> Estimator:
    if method == "gpumemnet":
        from foretell.learn import gpumemnet

        examples = [
            Example(features=job, num_bytes=case.measured_bytes, is_oom=case.is_oom, group=case.key)
            for case, job in known
        ]
        return gpumemnet.train_families(examples, gpumemnet.SETTINGS["mlp"], is_whole_device=True)
    rows = [
        Labelled(features=job, gpu=gpus.find(case.gpu), reserved_bytes=reserved_bytes(case, job), group=case.key)
        for case, job in known
        if not case.is_oom
    ]
    if method == "schedtune":
        from foretell.learn import schedtune

        return schedtune.train(rows)
    from foretell.learn import dnnperf

    return dnnperf.train(rows)


# --- foretell's own, on labels ----------------------------------------------------------------------------------------

OWN_FOLDS = 5


def own_held_out(
    cases: Sequence[Case],
    labels: Sequence[Row],
    measured: Sequence[Row],
    *,
    num_folds: int = OWN_FOLDS,
    on_fold: Callable[[], None] = lambda: None,
) -> HeldOut:
    """foretell's own estimator, trained in folds on labels alone: a run is judged by one that saw no label, and no
    measured run, of its architecture or of one whose name it shares (`resnet`, `seresnet`). Jobs that are drawn one by
    one have no architecture to hold out. `measured`: for the factors and the intervals, never the run itself."""
    from foretell.learn import train

    numbers = folds([group_of(case) for case in cases], num_folds)
    estimators: dict[str, Estimator] = {}
    for fold in range(num_folds):
        tested = [case for case, number in zip(cases, numbers, strict=True) if number == fold]
        names = {_model_of(case) for case in tested} - {""}
        keys = {case.key for case in tested}

        def is_other(row: Row, names: set[str] = names, keys: set[str] = keys) -> bool:
            return row.features.name not in keys and not is_relative(row.group, names)

        learned = train.learn([row for row in labels if is_other(row)], [row for row in measured if is_other(row)])
        estimators |= dict.fromkeys(keys, learned)
        on_fold()
    return HeldOut("guess", estimators)


def is_relative(group: str, names: Iterable[str]) -> bool:
    """Whether the group of a label (`timm-resnet`) and one of the names of models have an architecture in common."""
    head = "" if group.startswith(_DRAWN_ALONE) else head_of(group.rpartition("-")[2])
    return bool(head) and any(head in name or head_of(name) in head for name in names if head_of(name))


def _model_of(case: Case) -> str:
    """Its name, if it has one: `openai-community/gpt2`."""
    words = case.arguments
    return words[words.index("--model") + 1].lower() if "--model" in words else ""
