"""Starts processes on the virtual GPU (`worker.py`) that describe and label jobs, and asks them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from foretell import gpus
from foretell.errors import UnsupportedError
from foretell.records import Gpu
from foretell.rules import library_bytes
from foretell.runs.pool import Pool, Workers
from foretell.runs.scratch import scratch_folder
from foretell.virtual import environment, library_paths

LABEL_GPU = "400GiB,sm80"
"""So large that no job runs out of memory: a label is what a job needs, and whether it fits is a comparison."""
DESCRIBE_GPU = "4000GiB,sm80"
"""For measured runs, of which some took more than fits on a card of today."""
LIMIT_SECONDS = 600.0
"""For one job: a job takes a second at most, but the machine may be busy."""
_JOBS_PER_PROCESS = 2000


class Worker:
    """A process on a card; a new one after a crash, after a job that does not end, and after so many jobs that leaks
    could show."""

    def __init__(
        self, gpu: Gpu, *, is_fresh: bool = False, limit_seconds: float = LIMIT_SECONDS,
        command: Sequence[str] = (sys.executable, "-m", "foretell.learn.worker"),
    ) -> None:  # fmt: skip
        """`is_fresh`: each job in a process of its own."""
        self._gpu = gpu
        self._limit_seconds = limit_seconds
        self._command = [*command, *(["--fresh"] if is_fresh else [])]
        self._process: subprocess.Popen[str] | None = None
        self._num_jobs = 0
        self._scratch = scratch_folder("worker-")
        self._folder = self._scratch.__enter__()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._end()
        self._scratch.__exit__(None, None, None)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """An answer with `problem` says why there is nothing else in it."""
        if self._process is None or self._num_jobs >= _JOBS_PER_PROCESS:
            self._end()
            self._process = self._started()
        self._num_jobs += 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            is_in_time = _has_output(self._process.stdout, self._limit_seconds)
            line = self._process.stdout.readline() if is_in_time else ""
        except BrokenPipeError:
            is_in_time, line = True, ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._end()
        if not is_in_time:
            return {"problem": f"no answer within {self._limit_seconds:.0f} seconds"}
        return {"problem": f"the process died: {self._last_words()}"}

    def _last_words(self) -> str:
        log = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        return log[-1] if log else "no output"

    def _started(self) -> subprocess.Popen[str]:
        linker = self._folder / "libcuda.so"
        if not linker.is_symlink():
            linker.symlink_to(library_paths().cuda)
        variables = {
            **os.environ,
            **environment(
                self._gpu,
                context_bytes=self._gpu.context_bytes,
                libraries=library_bytes(self._gpu),
                log_prefix="",
            ),
            "TRITON_LIBCUDA_PATH": str(self._folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._num_jobs = 0
        with open(self._folder / "log", "w") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=variables
            )
        assert process.stdout is not None
        if not process.stdout.readline():  # it says that it is ready
            process.communicate()
            raise UnsupportedError(f"the process that describes jobs cannot start: {self._last_words()}")
        return process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _has_output(pipe: IO[str], seconds: float) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def ask_all(
    questions: Sequence[dict[str, Any]], *, workers: Workers, gpu: str = LABEL_GPU
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each question and its answer, as they come."""
    if isinstance(workers, int):
        workers = max(1, min(workers, len(questions)))
    with Pool(workers, holds=partial(Worker, gpus.find(gpu))) as pool:
        for (number, _), answer in pool.map(_ask, enumerate(questions)):
            yield number, answer


def describe_scripts(
    scripts: Sequence[tuple[Path, Sequence[str]]], *, workers: Workers
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Describes the jobs of foretell's own training scripts, many in one process: nothing isolates them."""
    questions = [{"script": str(path), "arguments": list(arguments)} for path, arguments in scripts]
    yield from ask_all(questions, workers=workers, gpu=DESCRIBE_GPU)


def state_of_description(*, of_any_script: bool = False) -> str:
    """What descriptions depend on: the code that makes them, the workloads (`of_any_script`: not these), and torch."""
    from foretell.runs import find_torch

    package = Path(__file__).parent.parent
    workloads = [] if of_any_script else sorted((package / "evaluation" / "workloads").glob("*.py"))
    installed = find_torch(sys.executable)
    digest = digest_of(*(package / "inside" / f"{name}.py" for name in ("describe", "played", "work")), *workloads)
    return f"{digest}-{installed.version if installed else ''}"


@cache
def digest_of(*paths: Path) -> str:
    import hashlib

    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _ask(question: tuple[int, dict[str, Any]], worker: Worker) -> dict[str, Any]:
    return worker.ask(question[1])
