"""From a case to the answer of an engine: the task of a worker of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell import api, gpus, time
from foretell.errors import ForetellError
from foretell.evaluation import intervals, metrics, statistics, tables, times
from foretell.evaluation.records import NO_SCRIPT, Answer, Case
from foretell.jobs import CaptureOptions, Job
from foretell.records import Engine, Estimate, Evidence, Gpu
from foretell.rules import interval
from foretell.runs import OUTPUT, Warm

_HERE = Path(__file__).parent
WORKLOADS = _HERE / "workloads"
JUDGING = (
    interval.CONSTANTS,
    *map(Path, (interval.__file__, intervals.__file__, metrics.__file__, statistics.__file__, tables.__file__)),
)
"""Code and constants that judge answers: no answer depends on them, so a change of them keeps the stored ones."""
TIMEOUT_SECONDS = 300.0
_TRANSFORMERS = ("gpt2", "gpt_neo", "opt", "qwen2", "llama", "qwen3")
_MODULES = {
    "causal_lm.py": (
        "transformers.models.auto.modeling_auto",
        *(f"transformers.models.{name}.modeling_{name}" for name in _TRANSFORMERS),
    ),
    "timm_step.py": ("timm",),
    "timm_benchmark.py": ("timm",),
    "published_cifar.py": ("timm",),
    "published_bert.py": ("transformers.models.bert.modeling_bert",),
    "published_granite.py": ("transformers.models.granite.modeling_granite",),
    "transformer_fp32.py": ("transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2"),
}
"""By workload: modules imported only once the model to train is known."""


def modules_of(cases: Iterable[Case]) -> list[str]:
    return sorted({name for case in cases for name in _MODULES.get(case.workload, ())})


def job_of(case: Case, engine: Engine, *, more_arguments: tuple[str, ...] = ()) -> Job:
    gpu = gpus.find(case.gpu)
    if not case.has_memory:
        # Times on any card follow from the recorded work, also on cards that this torch has no kernels for.
        gpu = replace(gpus.find(times.RECORDED_ON), total_bytes=times.MEMORY_OF_NO_LIMIT)
    return Job(
        command=(str(WORKLOADS / case.workload), *case.arguments, *more_arguments),
        gpu=gpu,
        context_bytes=_context_bytes(case, gpu),
        options=CaptureOptions(
            steps="all", history=case.has_memory, attribution=bool(case.measured), engine=engine,
            timeout_seconds=TIMEOUT_SECONDS, time=bool(case.measured),
        ),
    )


def _context_bytes(case: Case, gpu: Gpu) -> int | None:
    """With a given context the interval covers only the rest; the context is subtracted again where it does not
    count."""
    if case.is_context_unknown:
        return None
    return gpu.context_bytes if case.context_bytes is None else case.context_bytes


def key_of(case: Case, engine: Engine) -> str:
    """The same for cases with the same answer."""
    job = job_of(case, engine)
    key = replace(job, command=(case.workload, *job.command[1:])).key  # the same in every checkout
    if case.quantity == "allocated":
        return f"{key}-allocated"
    return key if case.has_memory else f"{key}-{case.gpu}"


def answer(asked: tuple[Case, Engine], warm: Warm) -> Answer:
    case, engine = asked
    if case.workload == NO_SCRIPT:
        return Answer(key=case.key, engine=engine, torch="", problem=f"no script repeats this job: {case.arguments[0]}")
    with api.scratch() as folder:
        try:
            run = api.run(job_of(case, engine), directory=folder, warm=warm)
            estimate = run.complete_estimate
        except ForetellError as error:
            problem = f"{error} {_last_lines(folder / OUTPUT)}".strip()
            return Answer(key=case.key, engine=engine, torch="", problem=problem)
    timed = times.details(run.trace, gpus.find(case.gpu)) if case.measured else {}
    if case.measured and not (timed or case.has_memory):
        return Answer(key=case.key, engine=engine, torch="", problem=f"no step time: {time.why_unknown(run.trace)}")
    evidence = estimate.evidence
    if case.draws and estimate.oom is None and evidence is not None:
        evidence = _with_draws(evidence, [_reserved_bytes(case, engine, draw, warm) for draw in case.draws])
    return _in_terms_of(case, engine, estimate, evidence, timed)


def _reserved_bytes(case: Case, engine: Engine, draw: tuple[str, ...], warm: Warm) -> int | None:
    try:
        estimate = api.run(job_of(case, engine, more_arguments=draw), warm=warm).complete_estimate
    except ForetellError:
        return None
    return None if estimate.oom else estimate.peak.reserved_bytes


def _with_draws(evidence: Evidence, reserved: Sequence[int | None]) -> Evidence:
    known = [evidence.reserved_bytes, *(size for size in reserved if size is not None)]
    return replace(
        evidence,
        shorter_bytes=evidence.reserved_bytes - min(known),
        longer_bytes=max(known) - evidence.reserved_bytes,
    )


def _in_terms_of(
    case: Case, engine: Engine, estimate: Estimate, evidence: Evidence | None, timed: dict[str, Any]
) -> Answer:
    peak = estimate.peak
    without = peak.context_bytes if case.context_bytes is None and not case.is_context_unknown else 0
    return Answer(
        key=case.key,
        engine=engine,
        torch=estimate.torch_version,
        is_oom=estimate.verdict == "oom",
        num_bytes=peak.allocated_bytes if case.quantity == "allocated" else peak.device_bytes - without,
        evidence=evidence,
        reserved_bytes=peak.reserved_bytes,
        seconds=estimate.seconds.get("total", 0.0),
        details={"allocated_bytes": peak.allocated_bytes, "libraries": list(estimate.library_names), **timed},
    )


def _last_lines(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").splitlines()[-3:]) if path.exists() else ""
