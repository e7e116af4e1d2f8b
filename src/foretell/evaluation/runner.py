"""Hands cases to warm processes and gives back answers as they come. A pool of this machine; another one (a cluster's)
needs the same two methods."""

from __future__ import annotations

import hashlib
import queue
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import foretell
from foretell import api, gpus
from foretell.capture import CaptureOptions, Command, WarmProcess
from foretell.capture.launch import OUTPUT
from foretell.errors import ForetellError
from foretell.evaluation.records import Answer, Case
from foretell.records import Engine, Estimate

WORKLOADS = Path(__file__).parent / "workloads"
TIMEOUT_SECONDS = 300.0
_TRANSFORMERS = ("gpt2", "gpt_neo", "opt", "qwen2", "llama", "qwen3")
_MODULES = {
    "torchvision_cnn.py": ("torchvision",),
    "imagenet_cnn.py": ("torchvision",),
    "causal_lm.py": (
        "transformers.models.auto.modeling_auto",
        *(f"transformers.models.{name}.modeling_{name}" for name in _TRANSFORMERS),
    ),
    "timm_model.py": ("timm",),
}


def state_of_code() -> str:
    """What an answer depends on: foretell's own code and tables."""
    root = Path(foretell.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".inc", ".toml") and "cli" not in path.relative_to(root).parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Pool:
    num_workers: int
    engine: Engine
    state: str

    def run(self, cases: Sequence[Case]) -> Iterator[Answer]:
        """In the order in which they end. Closing the iterator, or Ctrl-C, ends the workers and what they run."""
        waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in cases:
            waiting.put(case)
        answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        modules = sorted({name for case in cases for name in _MODULES.get(case.workload, ())})
        with tempfile.TemporaryDirectory(prefix="foretell-evaluate-", ignore_cleanup_errors=True) as scratch:
            workers = [
                WarmProcess(_folder(scratch, number), modules=modules)
                for number in range(min(self.num_workers, len(cases)))
            ]
            for worker in workers:
                threading.Thread(target=self._serve, args=(worker, waiting, answers), daemon=True).start()
            try:
                for _ in cases:
                    answer = answers.get()
                    if isinstance(answer, BaseException):
                        raise answer
                    yield answer
            finally:
                while not waiting.empty():
                    waiting.get()
                for worker in workers:
                    worker.close()

    def _serve(
        self,
        worker: WarmProcess,
        waiting: queue.SimpleQueue[Case],
        answers: queue.SimpleQueue[Answer | BaseException],
    ) -> None:
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answers.put(self._answer(case, worker))
            except BaseException as error:  # shown where the answers are read
                answers.put(error)
                return

    def _answer(self, case: Case, worker: WarmProcess) -> Answer:
        gpu = gpus.find(case.gpu)
        command = Command(argv=(sys.executable, str(WORKLOADS / case.workload), *case.arguments), python=sys.executable)
        # With a given context the interval is about the rest; it is taken off again where it does not count.
        context_bytes = gpu.context_bytes if case.context_bytes is None else case.context_bytes
        with api.scratch() as folder:
            try:
                estimate = api.run(
                    command,
                    gpu=gpu,
                    context_bytes=context_bytes,
                    options=CaptureOptions(
                        steps="all", history=False, engine=self.engine, timeout_seconds=TIMEOUT_SECONDS
                    ),
                    launcher=worker.launch,
                    directory=folder,
                )
            except ForetellError as error:
                said = _last_lines(folder / OUTPUT)
                return Answer(
                    key=case.key, engine=self.engine, torch="", state=self.state, problem=f"{error} {said}".strip()
                )
        return self._in_terms_of(case, estimate)

    def _in_terms_of(self, case: Case, estimate: Estimate) -> Answer:
        peak = estimate.peak
        without = peak.context_bytes if case.context_bytes is None else 0
        return Answer(
            key=case.key,
            engine=self.engine,
            torch=estimate.torch_version,
            state=self.state,
            is_oom=estimate.verdict == "oom",
            num_bytes=peak.device_bytes - without,
            low_bytes=peak.device_low_bytes - without,
            high_bytes=peak.device_high_bytes - without,
            request_bytes=peak.request_bytes - without,
            reserved_bytes=peak.reserved_bytes,
            seconds=estimate.seconds.get("total", 0.0),
            details={"allocated_bytes": peak.allocated_bytes, "libraries": list(estimate.library_names)},
        )


def _folder(scratch: str, number: int) -> Path:
    path = Path(scratch) / str(number)
    path.mkdir()
    return path


def _last_lines(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").splitlines()[-3:]) if path.exists() else ""
