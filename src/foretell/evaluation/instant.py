"""Instant estimators on measured runs: a description of each run's job, and what every estimator says to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from foretell import gpus
from foretell.errors import UsageError
from foretell.evaluation import times, trained
from foretell.evaluation.metrics import Figures, Judged, figures
from foretell.evaluation.records import Case
from foretell.evaluation.runner import WORKLOADS
from foretell.features import Guess, JobFeatures, Speed, features_from
from foretell.formulas import FORMULAS, Estimator
from foretell.formulas.device import beside_bytes
from foretell.learn import estimator as learned
from foretell.learn import methods
from foretell.learn.dataset import Row, Timing
from foretell.learn.processes import describe_scripts, digest_of
from foretell.records import Gpu
from foretell.runs.pool import Workers
from foretell.runs.store import Store
from foretell.units import GIB

GUESS = "guess"
ESTIMATORS = (GUESS, *FORMULAS, *methods.METHODS)
_CLASS_BYTES = {"mlp_a100": GIB, "mlp_plain_a100": GIB}
_OTHER_CLASS_BYTES = 8 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """An estimate as a class of memory, as GPUMemNet judges it; running out of memory is a class of its own."""

    set: str
    tool: str
    class_bytes: int
    num_runs: int
    num_answers: int
    accuracy: float
    too_low: float
    """Share of runs whose class is too low: a scheduler that trusts it loses the run."""


@dataclass(frozen=True, slots=True)
class Untrained:
    """A published estimator for which no model was given: `trained_on` the runs that are judged."""

    name: methods.Method

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        return None


def parse_estimators(text: str, *, models: Sequence[Path] = ()) -> dict[str, Estimator]:
    """By name, in the order given. `models`: files of `foretell train`, each for the estimator that its card names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ESTIMATORS]
    if unknown or not names:
        raise UsageError(f"--estimators {text}: unknown estimator. Known: {', '.join(ESTIMATORS)}.")
    known: dict[str, Estimator] = {**FORMULAS, **{name: Untrained(name) for name in methods.METHODS}}
    given = _models(models, names)
    if GUESS in names and GUESS not in given:
        given[GUESS] = learned.shipped()
    return {name: given.get(name) or known[name] for name in names}


def trained_on(
    cases: Sequence[Case],
    jobs: dict[str, JobFeatures | str],
    estimators: dict[str, Estimator],
    *,
    labels: Sequence[Row] = (),
    measured: Sequence[Row] = (),
    on_fold: Callable[[], None] = lambda: None,
) -> dict[str, Estimator]:
    """The estimators, with those that had no model trained in a cross-validation on the runs that are judged; with
    `labels`, foretell's own on these, without the architectures that it is judged on."""
    if labels and GUESS in estimators:
        own = trained.own_held_out(cases, labels, measured, on_fold=on_fold)
        estimators = {**estimators, GUESS: own}
    return {
        name: trained.held_out(each.name, cases, jobs, reserved_bytes, on_fold=on_fold)
        if isinstance(each, Untrained)
        else each
        for name, each in estimators.items()
    }


def about(estimators: dict[str, Estimator]) -> str:
    """What was trained how, and what could not be trained."""
    found = [each for each in estimators.values() if isinstance(each, trained.HeldOut)]
    names = ", ".join(each.name for each in found if each.name != GUESS)
    how = f" {names}: trained on these runs in {trained.FOLDS} folds, without the models each is judged on."
    if any(each.name == GUESS for each in found):
        how = f" {GUESS}: trained on the labels in {trained.OWN_FOLDS} folds, without the models each is judged on." + (
            how if names else ""
        )
    return (how if found else "") + "".join(f" {problem}" for each in found for problem in each.problems)


def num_trainings(cases: Sequence[Case], estimators: dict[str, Estimator], *, has_labels: bool = False) -> int:
    untrained = [each.name for each in estimators.values() if isinstance(each, Untrained)]
    own = trained.OWN_FOLDS if has_labels and GUESS in estimators else 0
    return own + sum(trained.num_trainings(name, cases) for name in untrained)


def _models(paths: Sequence[Path], names: Sequence[str]) -> dict[str, Estimator]:
    found: dict[str, Estimator] = {}
    for path in paths:
        method = methods.method_of(path)
        name = GUESS if method == methods.OWN else method
        if name not in names:
            raise UsageError(f"--model {path} is a model for {name}, which is not among --estimators.")
        if name in found:
            raise UsageError(f"--model {path}: there is another model for {name}.")
        found[name] = learned.read(path) if name == GUESS else methods.read(path)
    return found


def describe(
    cases: Sequence[Case], store: Store, *, workers: Workers, on_progress: Callable[[int, int], None]
) -> dict[str, JobFeatures | str]:
    """By key of the case: its job, or why it could not be described."""
    jobs = {_job(case): case for case in reversed(cases)}
    missing = [case for job, case in jobs.items() if job not in store]
    questions = [(WORKLOADS / case.workload, case.arguments) for case in missing]
    for done, (number, answer) in enumerate(describe_scripts(questions, workers=workers), start=1):
        store.add(_job(missing[number]), answer)
        on_progress(done, len(missing))
    return {case.key: _described(case, store[_job(case)]) for case in cases}


def _job(case: Case) -> str:
    """With a digest of its script: a job is described again when that has changed."""
    return " ".join([case.workload, digest_of(WORKLOADS / case.workload), *case.arguments])


def _described(case: Case, answer: dict[str, object]) -> JobFeatures | str:
    if answer.get("features") is None:
        return str(answer.get("problem"))
    return features_from({"source": "script", **answer["features"], "name": case.key})  # type: ignore[dict-item]


def judge(
    cases: Sequence[Case], jobs: dict[str, JobFeatures | str], estimators: dict[str, Estimator]
) -> tuple[list[Judged], list[Judged]]:
    """Every estimator's answer to every run, and the same for its upper bound. A job that could not be described counts
    as an estimate of nothing, which is an error of 100 %. So does a job without an answer, unless the estimator has
    none for the whole set."""
    judged, bounds = [], []
    for case in (case for case in cases if case.has_memory):
        for name, each in estimators.items():
            one, bound = _judged(case, jobs[case.key], name, each)
            judged.append(one)
            if bound is not None:
                bounds.append(bound)
    answering = {(each.case.set, each.tool) for each in judged if each.num_bytes}
    judged = [
        replace(each, num_bytes=0) if each.num_bytes is None and (each.case.set, each.tool) in answering else each
        for each in judged
    ]
    return judged, bounds


def _judged(case: Case, job: JobFeatures | str, name: str, estimator: Estimator) -> tuple[Judged, Judged | None]:
    if isinstance(job, str):
        return Judged(tool=name, case=case, num_bytes=0, is_oom=None), None
    gpu = gpus.find(case.gpu)
    started = time.perf_counter()
    guess = estimator.guess(job, gpu)
    seconds = time.perf_counter() - started
    if guess is None:
        return Judged(tool=name, case=case, num_bytes=None, is_oom=None), None
    beside = 0 if guess.is_whole_device else _beside_bytes(case, job)
    num_bytes = guess.reserved_bytes + beside
    uncounted = 0 if case.context_bytes is not None or guess.is_whole_device else gpu.context_bytes
    one = Judged(
        tool=name,
        case=case,
        num_bytes=num_bytes,
        is_oom=num_bytes + uncounted > gpu.total_bytes,
        low_bytes=None if guess.low_bytes is None else guess.low_bytes + beside,
        high_bytes=None if guess.high_bytes is None else guess.high_bytes + beside,
        seconds=seconds,
    )
    if guess.bound_bytes is None:
        return one, None
    high = guess.bound_bytes + beside
    bound = replace(one, tool=f"{name}, bound", num_bytes=high, is_oom=high + uncounted > gpu.total_bytes)
    return one, bound


def class_figures(judged: Sequence[Judged]) -> Iterator[ClassFigures]:
    keys = dict.fromkeys((each.case.set, each.tool) for each in judged)
    for name, tool in keys:
        chosen = [each for each in judged if (each.case.set, each.tool) == (name, tool)]
        width = _CLASS_BYTES.get(name, _OTHER_CLASS_BYTES)
        pairs = [(_class(each, width), _true_class(each.case, width)) for each in chosen]
        answers = [found for found, _ in pairs if found is not None]
        yield ClassFigures(
            set=name,
            tool=tool,
            class_bytes=width,
            num_runs=len(chosen),
            num_answers=len(answers),
            accuracy=statistics.fmean(found == true for found, true in pairs),
            too_low=statistics.fmean(found is not None and found < true for found, true in pairs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantFigures(Figures):
    """With the class of memory beside the errors."""

    class_bytes: int
    class_accuracy: float
    class_too_low: float
    num_without_answer: int
    """Counted among the errors, unless the estimator has no answer for the whole set."""


def instant_figures(judged: Sequence[Judged]) -> list[InstantFigures]:
    classes = {(each.set, each.tool): each for each in class_figures(judged)}
    found = []
    for each in figures(judged):
        one = classes[each.set, each.tool]
        values = {field.name: getattr(each, field.name) for field in fields(Figures)}
        found.append(
            InstantFigures(
                **values, class_bytes=one.class_bytes, class_accuracy=one.accuracy, class_too_low=one.too_low,
                num_without_answer=one.num_runs - one.num_answers,
            )
        )  # fmt: skip
    return found


TIMED = (times.STEP_MS, "gract", "smact")
"""Metrics of time that instant estimators answer."""


def is_judged(case: Case) -> bool:
    """Device memory, or time, of a training job: no instant estimator answers for inference."""
    return case.quantity == "device" and (case.has_memory or bool(case.measured)) and "infer" not in case.arguments


def speed_figures(
    cases: Sequence[Case], jobs: dict[str, JobFeatures | str], estimators: dict[str, Estimator]
) -> list[Figures]:
    """Of step times and utilization, where they were measured, for the estimators that answer. Jobs that could not be
    described are left out: what memory they count as is known, and not what time."""
    found = []
    steady = [case for case in cases if not case.is_oom]
    known = [(case, job) for case in steady if isinstance(job := jobs[case.key], JobFeatures)]
    wanted = dict.fromkeys((case.set, each) for case, _ in known for each in TIMED if each in case.measured)
    for name, metric in wanted:
        own = [(case, job) for case, job in known if case.set == name and metric in case.measured]
        answered = False
        for tool, estimator in estimators.items():
            guesses = [estimator.guess(job, gpus.find(case.gpu)) for case, job in own]
            pairs = [
                (case.measured[metric], guess.speed)
                for (case, _), guess in zip(own, guesses, strict=True)
                if guess is not None and guess.speed is not None
            ]
            if pairs:
                answered = True
                measured = [truth for truth, _ in pairs]
                triples = [_triple(speed, metric) for _, speed in pairs]
                found.append(times.metric_figures(name, tool, metric, measured, triples))
        if answered and metric != times.STEP_MS:
            found.append(times.always_the_median(name, metric, [case.measured[metric] for case, _ in own]))
    return found


def _triple(speed: Speed, metric: str) -> list[float]:
    stem = metric.removesuffix("_ms")
    unit = "_ms" if metric == times.STEP_MS else ""
    return [getattr(speed, each) for each in (metric, f"{stem}_low{unit}", f"{stem}_high{unit}")]


def measured_rows(cases: Sequence[Case], jobs: dict[str, JobFeatures | str]) -> list[Row]:
    """Measured runs as rows of a data set: what PyTorch reserved, by the measurement less context and libraries. Runs
    out of memory are left out, because the level they reached is not their need."""
    found = []
    for case in cases:
        job = jobs[case.key]
        if isinstance(job, str) or case.is_oom:
            continue
        family = trained.group_of(case)
        found.append(
            Row(
                kind=case.set, group=f"{case.set}-{family}", gpu=case.gpu, torch=job.torch_version, source=case.set,
                draw="", features=replace(job, name=case.key),
                reserved_bytes=reserved_bytes(case, job) if case.has_memory else 0,
                times={gpus.find(case.gpu).name: _timing(case)} if case.measured else {},
            )
        )  # fmt: skip
    return found


def _timing(case: Case) -> Timing:
    return Timing(**{name: value for name, value in case.measured.items() if name in TIMED})


def reserved_bytes(case: Case, job: JobFeatures) -> int:
    """What PyTorch reserved: the measurement less context and libraries."""
    return max(case.measured_bytes - _beside_bytes(case, job), 0)


def _beside_bytes(case: Case, job: JobFeatures) -> int:
    """Context and libraries, as far as the measured number includes them."""
    libraries = beside_bytes(job, gpus.find(case.gpu), context_bytes=case.context_bytes)
    return libraries + (case.context_bytes or 0)


_OOM = 1 << 30


def _class(judged: Judged, width: int) -> int | None:
    if not judged.num_bytes:
        return None
    return _OOM if judged.is_oom else judged.num_bytes // width


def _true_class(case: Case, width: int) -> int:
    return _OOM if case.is_oom else case.measured_bytes // width


__all__ = ["ClassFigures", "Figures", "class_figures", "describe", "figures", "judge", "parse_estimators"]
