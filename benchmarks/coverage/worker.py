"""A warm process: torch and the libraries are imported once, and every job runs in two forks of it, one on the CPU and
one on the virtual GPU. CUDA is never initialised here, only in the forks.

Reads keys of jobs, one a line, and answers each with the JSON of its `Result`. It must be started in the environment in
which a process sees the virtual GPU (`pool.py` does).

A fork on the virtual GPU installs the hooks of `foretell run` itself, with a capture folder of its own. The one
difference: they come after the libraries' import, not before it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from benchmarks.coverage import judge, libraries
from benchmarks.coverage.jobs import ASKS_NVML, OUT_OF_MEMORY, OUT_OF_TIME, Fork, HarnessError, Job, Result
from benchmarks.coverage.training import Task, seed, train

# Before the forks: each would import it again, and a run is of one state of the code.
import foretell.capture.inside.offline
import foretell.capture.inside.overlay
import foretell.capture.inside.torch_hooks  # noqa: F401
from foretell.capture import inside

ZOO = Path(__file__).resolve().parents[2] / "tests" / "zoo"
sys.path.append(str(ZOO))
import recorder  # noqa: E402

Device = Literal["cpu", "cuda"]
SECONDS = {"cpu": 120.0, "cuda": 120.0}
MOST_BYTES = 9 << 30
"""Of the machine's memory, for one fork."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what the first optimizer of a process imports
    code = state_of_code()
    for line in sys.stdin:
        result = work(Job.of(line.strip()), folder / "job")
        answers.write(replace(result, code=code).to_json() + "\n")
        answers.flush()


def state_of_code() -> str:
    """A short hash of what a result depends on: foretell, this harness, the recorder."""
    root = ZOO.parents[1]
    places = [*(root / "src" / "foretell").rglob("*"), *Path(__file__).parent.glob("*.py"), Path(recorder.__file__)]
    digest = hashlib.sha256()
    for path in sorted(path for path in places if path.suffix in (".py", ".c", ".h", ".inc", ".toml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def work(job: Job, folder: Path) -> Result:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    libraries.prepare(job)
    on_cpu = fork("cpu", folder, lambda: on_the_cpu(job))
    size = on_cpu.said.get("size")
    on_gpu = None
    if on_cpu.problem not in (OUT_OF_TIME, OUT_OF_MEMORY):
        on_gpu = fork("cuda", folder, lambda: on_the_virtual_gpu(job, size, folder))
    result = judge.result(job, on_cpu, on_gpu, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return result


# --- in the forks -----------------------------------------------------------------------------------------------------


def on_the_cpu(job: Job) -> dict[str, Any]:
    """The smallest size at which the steps really run; a model that runs at none fails by itself."""
    error: Exception | None = None
    size = None
    for size in libraries.sizes(job):
        try:
            seed()
            said = recorded(libraries.build(job, size), torch.device("cpu"))
        except Exception as failure:
            error = error or failure
        else:
            # The optimizer may initialise CUDA by asking whether a graph is being captured.
            if torch.cuda.is_initialized() and torch.cuda.max_memory_allocated() > 0:
                raise HarnessError("the model went to the GPU by itself")
            return {**said, "size": size}
    assert error is not None
    error.size = size  # type: ignore[attr-defined]
    raise error


def on_the_virtual_gpu(job: Job, size: int | None, folder: Path) -> dict[str, Any]:
    os.environ["FORETELL_LOG"] = str(folder / "native")
    inside.install({"directory": str(folder)})
    seed()
    said = recorded(libraries.build(job, size), torch.device("cuda"))
    return {**said, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def recorded(task: Task, device: torch.device) -> dict[str, Any]:
    num_parameters = sum(parameter.numel() for parameter in task.model.parameters())
    record = recorder.Record()
    record.start()
    try:
        train(task, device)
    finally:
        record.stop()
    return {"record": record.lines, "num_parameters": num_parameters}


# --- around them ------------------------------------------------------------------------------------------------------


def fork(device: Device, folder: Path, call: Callable[[], dict[str, Any]]) -> Fork:
    started = time.monotonic()
    answer, log = folder / f"answer-{device}", folder / f"log-{device}"
    child = os.fork()
    if child == 0:
        in_fork(answer, log, call)
    ending = wait(child, deadline=started + SECONDS[device])
    _, status = os.waitpid(child, 0)
    exit_status = os.waitstatus_to_exitcode(status)
    said: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(answer.read_text())
    if not ending and exit_status < 0:
        ending = signal.Signals(-exit_status).name
    return Fork(
        said=said,
        problem=ending or said.get("problem", "" if said and exit_status == 0 else f"exit code {exit_status}"),
        traceback=said.get("traceback", ""),
        log=log.read_text(errors="replace") if log.exists() else "",
        exit_status=exit_status,
        seconds=time.monotonic() - started,
    )


def in_fork(answer: Path, log: Path, call: Callable[[], dict[str, Any]]) -> NoReturn:
    """Runs it as a process of its own would: an exception goes through sys.excepthook, and exit handlers run."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Opened now: what is opened later goes to foretell's overlay.
    answers = os.open(answer, os.O_WRONLY | os.O_CREAT)
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    code = 0
    try:
        if torch.cuda._is_in_bad_fork():
            raise HarnessError("CUDA was touched before the fork")
        os.environ.pop(ASKS_NVML, None)
        said = call()
    except BaseException as error:
        said = {
            "problem": f"{type(error).__name__}: {error}".strip(),
            "traceback": "".join(traceback.format_exception(error)),
            "size": getattr(error, "size", None),
        }
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    with os.fdopen(answers, "w") as file:
        json.dump(said, file)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not os._exit: the native log is written by a destructor. Not sys.exit: taking Python apart is slow.
    ctypes.PyDLL(None).exit(code)
    raise AssertionError("exit returned")


def wait(child: int, *, deadline: float) -> str:
    """Until the child has ended; one that takes too long or too much is ended."""
    handle = os.pidfd_open(child)
    try:
        while not select.select([handle], [], [], 0.1)[0]:
            ending = OUT_OF_TIME if time.monotonic() > deadline else OUT_OF_MEMORY if is_too_big(child) else ""
            if ending:
                os.kill(child, signal.SIGKILL)
                return ending
    finally:
        os.close(handle)
    return ""


def is_too_big(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() > MOST_BYTES
    return False


if __name__ == "__main__":
    main()
