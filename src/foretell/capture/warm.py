"""Many runs, each a fork of one process that has imported torch: what `launch` does, in a tenth of its time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foretell.capture.command import Command
from foretell.capture.launch import OUTPUT, CaptureOptions, Progress, child_environment
from foretell.errors import UnsupportedError
from foretell.records import CaptureResult, Gpu, LibraryBytes

_SERVER = Path(__file__).parent / "inside" / "fork_server.py"


class WarmProcess:
    """Started with the first run, and again when it has died. Scripts only: `python SCRIPT.py ARGS`."""

    def __init__(self, directory: Path, *, modules: Sequence[str] = ()) -> None:
        self._directory = directory
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}

    def launch(
        self,
        command: Command,
        *,
        gpu: Gpu,
        context_bytes: int,
        is_context_given: bool,
        libraries: LibraryBytes,
        directory: Path,
        options: CaptureOptions,
        used_by_others_bytes: int = 0,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> CaptureResult:
        """As `capture.launch`; nothing is told of the progress."""
        python, *words = command.argv
        environment = child_environment(gpu, context_bytes + used_by_others_bytes, libraries, directory, options)
        process = self._process = self._process or self._start(python, environment)
        job = {
            "argv": words,
            "environment": _changes(self._environment, environment),
            "total_bytes": gpu.total_bytes,
            "output": str(directory / OUTPUT),
            "timeout_seconds": options.timeout_seconds,
        }
        answer = _ask(process, json.dumps(job))
        if answer is None:
            self.close()
            raise UnsupportedError(f"the warm process died. Its last words:\n{self._last_words()}")
        return CaptureResult(
            directory=directory,
            command=command.argv,
            gpu=gpu,
            context_bytes=context_bytes,
            is_context_given=is_context_given,
            libraries=libraries,
            used_by_others_bytes=used_by_others_bytes,
            exit_status=answer["exit_status"],
            is_timed_out=answer["is_timed_out"],
            seconds=answer["seconds"],
            variables=options.variables,
        )

    def _start(self, python: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        """In the environment of its first run, but for what only a fork may read."""
        without_run = {**environment, "FORETELL_LOG": str(self._directory / "server")}
        for name in ("FORETELL_CAPTURE", "FORETELL_DEVICE", "FORETELL_WORKSPACES"):
            without_run.pop(name, None)
        with open(self._directory / "log", "a") as log:
            process = subprocess.Popen(
                [python, str(_SERVER), *self._modules],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                env=without_run,
            )  # fmt: skip
        if _ask(process, None) is None:
            raise UnsupportedError(f"torch could not be imported:\n{self._last_words()}")
        self._environment = without_run
        return process

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and the fork it waits for
            self._process.wait()
        self._process = None

    def _last_words(self) -> str:
        return "\n".join((self._directory / "log").read_text(errors="replace").splitlines()[-12:])


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """None: no longer set."""
    gone = dict.fromkeys(before.keys() - after.keys())
    return gone | {name: value for name, value in after.items() if before.get(name) != value}


def _ask(process: subprocess.Popen[str], question: str | None) -> dict[str, Any] | None:
    """None: it has died. Without a question: what it says by itself."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if question is not None:
            process.stdin.write(question + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        return None
    return json.loads(answer) if answer else None
