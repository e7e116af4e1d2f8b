"""Starts a job on the virtual GPU, in a new process or in a fork of a warm one, and waits for its end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from foretell.errors import UsageError
from foretell.jobs import CaptureResult, Job
from foretell.runs.calls import words_of
from foretell.runs.command import resolve
from foretell.runs.environment import OUTPUT, child_environment, libraries_of
from foretell.runs.waiting import Ended, Program, Progress, Watch, see_to_its_end
from foretell.runs.warm import Warm


def launch(
    job: Job, directory: Path, *, warm: Warm | None = None, on_progress: Callable[[Progress], None] | None = None
) -> CaptureResult:
    """Run the job to its end; docs/architecture.md describes the resulting capture folder."""
    words, options = words_of(job, directory), job.options
    command = resolve(words, engine=options.engine, cwd=job.cwd, environ=job.variables())
    if warm is not None and not warm.can_fork(command):
        warm = None
    output = directory / OUTPUT if warm is not None or options.stdout == "file" else None
    program = Program(
        argv=command.argv,
        environment=child_environment(job, directory) | command.environment,
        cwd=job.folder,
        stdout=output or ("stderr" if options.stdout == "stderr" else "inherit"),
        stderr=output or "inherit",
        timeout_seconds=options.timeout_seconds,
        most_bytes=options.most_host_bytes,
    )
    ended = run_program(program, Watch(directory, steps=options.steps, on_progress=on_progress), warm=warm)
    return CaptureResult(
        job=job,
        directory=directory,
        command=command.argv,
        libraries=libraries_of(job),
        exit_status=ended.exit_status,
        is_timed_out=ended.limit == "time",
        is_over_host_memory=ended.limit == "memory",
        is_interrupted=ended.limit == "interrupt",
        seconds=ended.seconds,
    )


def run_program(program: Program, watch: Watch, *, warm: Warm | None = None) -> Ended:
    """Run any program to its end, including one without hooks."""
    return warm.run(program, watch) if warm is not None else see_to_its_end(_OwnProcess(program), program, watch)


class _OwnProcess:
    def __init__(self, program: Program) -> None:
        with contextlib.ExitStack() as stack:
            targets = {each for each in (program.stdout, program.stderr) if isinstance(each, Path)}
            files: dict[object, IO[bytes]] = {each: stack.enter_context(open(each, "wb")) for each in targets}
            try:
                # A session of its own: Ctrl-C reaches it once, through us, and everything it starts can be found and
                # ended.
                self._process = subprocess.Popen(
                    program.argv,
                    env=program.environment,
                    cwd=program.cwd,
                    stdout=2 if program.stdout == "stderr" else files.get(program.stdout),
                    stderr=files.get(program.stderr),
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(f"cannot start {program.argv[0]}: {error.strerror or error}.") from None
        self.pid = self._process.pid

    def wait(self, seconds: float | None) -> bool:
        """Returns as soon as the process ends, thanks to a pidfd."""
        if self._process.poll() is not None:
            return True
        if not hasattr(os, "pidfd_open"):  # not Linux
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return self._process.poll() is not None
        handle = os.pidfd_open(self.pid)
        try:
            select.select([handle], [], [], seconds)
        finally:
            os.close(handle)
        return self._process.poll() is not None

    def exit_status(self) -> int:
        assert self._process.returncode is not None, f"{self.pid} has not ended"
        return self._process.returncode
