"""Hands jobs to warm workers and gives back their results as they come."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.coverage.jobs import ASKS_NVML, GPU, Job, Result

from foretell import gpus
from foretell.overhead import library_bytes
from foretell.virtual import environment

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One process of worker.py in the environment of `foretell run`; a new one when it dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: Job) -> Result:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.key + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            return Result(job=job.key, outcome="failed", reason="the worker died", evidence=self._last_words())
        return Result.from_json(answer)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and the fork it waits for
            self._process.wait()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        gpu = gpus.find(GPU)
        card = environment(
            gpu, context_bytes=gpu.context_bytes, libraries=library_bytes(gpu), log_prefix=str(self._folder / "native")
        )
        settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
        settings[ASKS_NVML] = "1"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with open(self._folder / "log", "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.coverage.worker", str(self._folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                env={**os.environ, **card, **settings, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip

    def _last_words(self) -> list[str]:
        return (self._folder / "log").read_text(errors="replace").splitlines()[-12:]


class Watcher(Protocol):
    def started(self, job: Job) -> None: ...


@dataclass(frozen=True, slots=True)
class Pool:
    num_workers: int

    def run(self, jobs: Sequence[Job], watcher: Watcher) -> Iterator[Result]:
        """In the order in which they end. Closing the iterator, or Ctrl-C, ends the workers and what they run."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        with tempfile.TemporaryDirectory(prefix="foretell-coverage-", ignore_cleanup_errors=True) as scratch:
            workers = [Worker(folder(scratch, number)) for number in range(min(self.num_workers, len(jobs)))]
            for worker in workers:
                threading.Thread(target=serve, args=(worker, waiting, results, watcher), daemon=True).start()
            try:
                for _ in jobs:
                    result = results.get()
                    if isinstance(result, BaseException):
                        raise result
                    yield result
            finally:
                while not waiting.empty():
                    waiting.get()
                for worker in workers:
                    worker.close()


def folder(scratch: str, number: int) -> Path:
    path = Path(scratch) / str(number)
    path.mkdir()
    return path


def serve(
    worker: Worker,
    waiting: queue.SimpleQueue[Job],
    results: queue.SimpleQueue[Result | BaseException],
    watcher: Watcher,
) -> None:
    while True:
        try:
            job = waiting.get_nowait()
        except queue.Empty:
            return
        watcher.started(job)
        try:
            results.put(worker.run(job))
        except BaseException as error:  # shown where the results are read
            results.put(error)
            return
