"""Instant estimators on measured runs: a description of each run's job, and what every estimator says to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foretell import gpus
from foretell.errors import UsageError
from foretell.evaluation.metrics import Figures, Judged, figures
from foretell.evaluation.records import Case
from foretell.evaluation.runner import WORKLOADS
from foretell.features import JobFeatures, features_from
from foretell.formulas import FORMULAS, Estimator
from foretell.formulas.device import beside_bytes
from foretell.learn import estimator as learned
from foretell.learn.dataset import Row
from foretell.learn.processes import describe_scripts
from foretell.runs.store import Store
from foretell.units import GIB

GUESS = "guess"
ESTIMATORS = (GUESS, *FORMULAS)
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


def parse_estimators(text: str, *, model: Path | None = None) -> dict[str, Estimator]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ESTIMATORS]
    if unknown or not names:
        raise UsageError(f"--estimators {text}: unknown estimator. Known: {', '.join(ESTIMATORS)}.")
    own = [learned.read(model) if model else learned.shipped()] if GUESS in names else []
    return {name: own[0] if name == GUESS else FORMULAS[name] for name in names}


def describe(
    cases: Sequence[Case], store: Store, *, workers: int, on_progress: Callable[[int, int], None]
) -> dict[str, JobFeatures | str]:
    """By key of the case: its job, or why it could not be described. Runs that differ in the batch alone are described
    once, and scaled."""
    jobs = {_job(case): case for case in reversed(cases)}
    missing = [case for job, case in jobs.items() if job not in store]
    questions = [(WORKLOADS / case.workload, case.arguments) for case in missing]
    for done, (number, answer) in enumerate(describe_scripts(questions, workers=workers), start=1):
        store.add(_job(missing[number]), answer)
        on_progress(done, len(missing))
    return {case.key: _described(case, store[_job(case)]) for case in cases}


def _job(case: Case) -> str:
    words = list(case.arguments)
    if "--batch-size" in words:
        del words[words.index("--batch-size") : words.index("--batch-size") + 2]
    return " ".join([case.workload, *words])


def _described(case: Case, answer: dict[str, object]) -> JobFeatures | str:
    if answer.get("features") is None:
        return str(answer.get("problem"))
    features = features_from({"source": "script", "name": case.key, **answer["features"]})  # type: ignore[dict-item]
    batch_size = int(case.arguments[case.arguments.index("--batch-size") + 1])
    return features if batch_size == features.batch_size else features.with_batch(batch_size)


def judge(
    cases: Sequence[Case], jobs: dict[str, JobFeatures | str], estimators: dict[str, Estimator]
) -> tuple[list[Judged], list[Judged]]:
    """Every estimator's answer to every run, and the same for its upper bound. A job that could not be described counts
    as an estimate of nothing, which is an error of 100 %."""
    judged, bounds = [], []
    for case in cases:
        for name, each in estimators.items():
            one, bound = _judged(case, jobs[case.key], name, each)
            judged.append(one)
            if bound is not None:
                bounds.append(bound)
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


def measured_rows(cases: Sequence[Case], jobs: dict[str, JobFeatures | str]) -> list[Row]:
    """Measured runs as rows of a data set: what PyTorch reserved, by the measurement less context and libraries. Runs
    out of memory are left out, because the level they reached is not their need."""
    found = []
    for case in cases:
        job = jobs[case.key]
        if isinstance(job, str) or case.is_oom:
            continue
        reserved = case.measured_bytes - _beside_bytes(case, job)
        model = str(case.factors.get("model", case.key)).split("_")[0]
        found.append(
            Row(
                kind=case.set, group=f"{case.set}-{model}", gpu=case.gpu, torch=job.torch_version, source=case.set,
                draw="", features=replace(job, name=case.key), reserved_bytes=max(reserved, 0),
            )
        )  # fmt: skip
    return found


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
