"""One job of `make coverage`: two forks of a warm process, one on the CPU and one on the virtual GPU, and a verdict.

A fork on the virtual GPU is a run of foretell as any other; that on the CPU has the same card, and no hooks.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.coverage import judge, libraries
from benchmarks.coverage.jobs import GPU, OUT_OF_MEMORY, OUT_OF_TIME, Fork, HarnessError, Job, Result
from benchmarks.coverage.training import Task, seed, train

from foretell import api, gpus
from foretell import jobs as foretell_jobs
from foretell.runs import OUTPUT, Program, Warm, Watch, pickled, result_of, run_program
from foretell.runs.calls import words_of
from foretell.runs.environment import child_environment

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "tests" / "zoo"
if str(ZOO) not in sys.path:
    sys.path.append(str(ZOO))
import recorder  # noqa: E402

MODULES = (__name__,)
"""What the forks share: the libraries, this harness and the recorder."""
SECONDS = 120.0
MOST_BYTES = 9 << 30
"""Of the machine's memory, for one fork."""
CODE = (Path(__file__).parent, Path(recorder.__file__))
"""What a result depends on beside foretell."""


def work(job: Job, warm: Warm) -> Result:
    warm.add_modules(libraries.modules_of(job))
    with api.scratch() as folder:
        (folder / "cpu").mkdir()
        (folder / "gpu").mkdir()
        on_cpu = fork_on_cpu(job, folder / "cpu", warm)
        if on_cpu.problem in (OUT_OF_TIME, OUT_OF_MEMORY):
            return judge.result(job, on_cpu, None, None)
        on_gpu, run = fork_on_gpu(job, on_cpu.said.get("size"), folder / "gpu", warm)
        return judge.result(job, on_cpu, on_gpu, run)


def fork_on_cpu(job: Job, folder: Path, warm: Warm) -> Fork:
    call = capture_job(job, on_the_cpu, job.key)
    variables = child_environment(call, folder)
    del variables["FORETELL_CAPTURE"]
    program = Program(
        argv=(sys.executable, *words_of(call, folder)),
        environment=variables,
        cwd=folder,
        stdout=folder / OUTPUT,
        stderr=folder / OUTPUT,
        timeout_seconds=SECONDS,
        most_bytes=MOST_BYTES,
    )
    ended = run_program(program, Watch(folder), warm=warm)
    limit = {"time": OUT_OF_TIME, "memory": OUT_OF_MEMORY, None: ""}[ended.limit]
    return a_fork(folder, limit, ended.exit_status, ended.seconds)


def fork_on_gpu(job: Job, size: int | None, folder: Path, warm: Warm) -> tuple[Fork, api.Run]:
    started = time.monotonic()
    run = api.run(capture_job(job, on_the_virtual_gpu, job.key, size), directory=folder, warm=warm)
    limit = OUT_OF_TIME if run.trace.is_timed_out else ""
    return a_fork(folder, limit, run.trace.exit_status, time.monotonic() - started), run


def capture_job(job: Job, function: Callable[..., object], *args: Any) -> foretell_jobs.Job:
    settings = {
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return foretell_jobs.Job(
        command=(job.key,),
        call=pickled(function, args, keeps_result=True),
        gpu=gpus.find(GPU),
        environment=foretell_jobs.changes(settings),
        options=foretell_jobs.CaptureOptions(timeout_seconds=SECONDS, most_host_bytes=MOST_BYTES),
    )


def a_fork(folder: Path, limit: str, exit_status: int, seconds: float) -> Fork:
    said: dict[str, Any] = result_of(folder) or {}
    problem = said.get("problem", "" if said else f"exit code {exit_status}")
    if exit_status < 0:
        problem = signal.Signals(-exit_status).name
    log = folder / OUTPUT
    return Fork(
        said=said,
        problem=limit or problem,
        traceback=said.get("traceback", ""),
        log=log.read_text(errors="replace") if log.exists() else "",
        exit_status=exit_status,
        seconds=seconds,
    )


# --- in the forks -----------------------------------------------------------------------------------------------------


def on_the_cpu(key: str) -> dict[str, Any]:
    """The smallest size at which the steps really run; a model that runs at none fails by itself."""
    job, error, size = Job.of(key), None, None
    for size in libraries.sizes(job):
        try:
            seed()
            said = recorded(libraries.build(job, size), torch.device("cpu"))
        except Exception as failure:
            error = error or failure
        else:
            # The optimizer may initialise CUDA by asking whether a graph is being captured.
            if torch.cuda.is_initialized() and torch.cuda.max_memory_allocated() > 0:
                return problem_of(HarnessError("the model moved itself to the GPU"), size)
            return {**said, "size": size}
    assert error is not None
    return problem_of(error, size)


def on_the_virtual_gpu(key: str, size: int | None) -> dict[str, Any]:
    seed()
    try:
        said = recorded(libraries.build(Job.of(key), size), torch.device("cuda"))
    except Exception as error:
        return problem_of(error, size)
    return {**said, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def problem_of(error: Exception, size: int | None) -> dict[str, Any]:
    return {
        "problem": f"{type(error).__name__}: {error}".strip(),
        "traceback": "".join(traceback.format_exception(error)),
        "size": size,
    }


def recorded(task: Task, device: torch.device) -> dict[str, Any]:
    torch.set_num_threads(1)
    num_parameters = sum(parameter.numel() for parameter in task.model.parameters())
    record = recorder.Record()
    record.start()
    try:
        train(task, device)
    finally:
        record.stop()
    return {"record": record.lines, "num_parameters": num_parameters}
