"""Starts a job on the virtual GPU, in a new process or in a fork of a warm one, and waits for its end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

from foretell.errors import UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, CaptureResult, Job
from foretell.records import Isolation, IsolationMode
from foretell.runs.calls import words_of
from foretell.runs.command import resolve
from foretell.runs.contained import ContainedProcess, remedy
from foretell.runs.environment import (
    OUTPUT,
    OWNER,
    child_environment,
    context_of,
    hub_caches,
    libraries_of,
    private_cache,
    shared_caches,
    write_to_overlay,
)
from foretell.runs.imports import worth_importing
from foretell.runs.relay import Relays
from foretell.runs.waiting import (
    CannotIsolate,
    Child,
    Containment,
    Ended,
    Program,
    Progress,
    Watch,
    end_everything,
    see_to_its_end,
)
from foretell.runs.warm import Warm
from foretell.runs.worlds import started_by


def launch(
    job: Job, directory: Path, *, warm: Warm | None = None, on_progress: Callable[[Progress], None] | None = None
) -> CaptureResult:
    """Run the job to its end; docs/architecture.md describes the resulting capture folder."""
    words, options = words_of(job, directory), job.options
    command = resolve(
        words, engine=options.engine, cwd=job.cwd, environ=job.variables(), gpus_per_node=job.gpus_per_node,
        world_size=job.world_size, ranks=job.ranks, files=job.files,
    )  # fmt: skip
    if command.world is not None:
        modules = worth_importing(command.argv[1:], job.folder) if command.python is not None else ()
        argv = started_by(
            command.world, command.argv, directory, python=command.python, outer=sys.executable, modules=modules
        )
        command = replace(command, argv=argv)
    if warm is not None and not warm.can_fork(command):
        warm = None
    output = directory / OUTPUT if warm is not None or options.stdout == "file" else None
    watch = Watch(directory, steps=options.steps, on_progress=on_progress)

    def run(mode: IsolationMode) -> Ended:
        if mode == "python":
            write_to_overlay(directory, job.files)
        environment = child_environment(job, directory, isolation=mode, num_gpus=command.num_gpus)
        program = Program(
            argv=command.argv,
            environment=environment | command.environment,
            cwd=job.folder,
            stdout=output or ("stderr" if options.stdout == "stderr" else "inherit"),
            stderr=output or "inherit",
            timeout_seconds=options.timeout_seconds,
            most_bytes=options.most_host_bytes,
            containment=_containment(job, directory) if mode == "kernel" else None,
        )
        return run_program(program, watch, warm=warm)

    ended, isolation = _isolated(run, options)
    return CaptureResult(
        job=job,
        directory=directory,
        command=command.argv,
        libraries=libraries_of(job),
        empty_process_bytes=context_of(job),
        exit_status=ended.exit_status,
        is_timed_out=ended.limit == "time",
        is_over_host_memory=ended.limit == "memory",
        is_interrupted=ended.limit == "interrupt",
        seconds=ended.seconds,
        isolation=isolation,
        is_python=command.python is not None,
        code_cache=private_cache("code", os.environ) if options.time else None,
    )


def _isolated(run: Callable[[IsolationMode], Ended], options: CaptureOptions) -> tuple[Ended, Isolation]:
    """Run with the isolation that was asked for, or with the best there is."""
    wanted, reason = options.isolation, None
    if wanted in ("auto", "kernel"):
        try:
            ended = run("kernel")
        except CannotIsolate as error:
            reason = str(error)
        else:
            return ended, Isolation(
                mode="kernel",
                is_online=not options.offline,
                read_only=ended.read_only,
                is_in_memory=ended.is_in_memory,
            )
    if wanted == "kernel":
        raise UnsupportedError(f"--isolation kernel is not possible here: {reason}. {remedy()}")
    mode: IsolationMode = "none" if wanted == "none" else "python"
    return run(mode), Isolation(mode=mode, reason=reason, is_online=not options.offline)


def _containment(job: Job, directory: Path) -> Containment:
    variables, is_online = job.variables(), not job.options.offline
    writable = (*shared_caches(variables), *(hub_caches(variables) if is_online else ()))
    for path, _ in job.files:
        if any(folder.resolve() in path.parents for folder in writable):
            raise UsageError(f"{path} is in a cache, which the script shares with other runs. Move it elsewhere.")
    return Containment(
        directory=directory,
        writable=writable,
        is_online=is_online,
        keeps_writes=job.options.keep_writes,
        files=job.files,
        is_owned=(directory / OWNER).exists(),
    )


def run_program(program: Program, watch: Watch, *, warm: Warm | None = None) -> Ended:
    """Run any program to its end, including one without hooks."""
    if warm is not None:
        return warm.run(program, watch)
    with Relays() as relays:
        return see_to_its_end(_start(program, relays), program, watch)


def _start(program: Program, relays: Relays) -> Child:
    with contextlib.ExitStack() as stack:
        targets = {each for each in (program.stdout, program.stderr) if isinstance(each, Path)}
        files: dict[object, IO[bytes]] = {each: stack.enter_context(open(each, "wb")) for each in targets}
        stdout = files.get(program.stdout) or relays.descriptor(2 if program.stdout == "stderr" else 1)
        stderr = files.get(program.stderr) or relays.descriptor(2)
        kind = _OwnProcess if program.containment is None else ContainedProcess
        # None: inherited, also where it is closed.
        return kind(program, None if stdout == 1 else stdout, None if stderr == 2 else stderr)


class _OwnProcess:
    read_only: tuple[str, ...] = ()
    is_in_memory = False

    def __init__(self, program: Program, stdout: IO[bytes] | int | None, stderr: IO[bytes] | int | None) -> None:
        try:
            # A session of its own: Ctrl-C reaches it once, through us, and everything it starts can be found and ended.
            self._process = subprocess.Popen(
                program.argv, env=program.environment, cwd=program.cwd, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
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

    def end(self, directory: Path, *, grace: float) -> None:
        end_everything(self, directory, grace=grace)

    def kill(self, directory: Path) -> None:
        end_everything(self, directory, grace=0.0)
