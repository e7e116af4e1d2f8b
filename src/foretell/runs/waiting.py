"""Waiting for a run: its progress, its limits, and cleaning up after it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from foretell.jobs import Steps
from foretell.protocol.journal import JournalReader
from foretell.runs import host_memory

# How long a process may take to exit cleanly before it is killed, and how long a killed one may take.
_GRACE_SECONDS = KILLED_SECONDS = 5.0
_LEFTOVER_SECONDS = 1.0
_FIRST_PROGRESS_SECONDS = 2.0
_PROGRESS_SECONDS = 1.0
_MEMORY_SECONDS = 0.1
"""How often the memory of a run with a memory limit is checked."""
_AUTO_STEPS = 3
"""The minimum number of steps of `auto`, and mostly the actual one."""


class CannotIsolate(Exception):
    """The kernel refuses namespaces; the text says what failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containment:
    """What a program in namespaces of its own may touch; everything else it changes is lost."""

    directory: Path
    """The capture folder."""
    writable: tuple[Path, ...] = ()
    """Other folders whose files it really changes: caches."""
    is_online: bool = False
    keeps_writes: bool = False
    """Copy the files it wrote to `overlay/` of the capture folder."""
    files: tuple[tuple[Path, str], ...] = ()
    """As of `Job`."""
    is_owned: bool = False
    """The capture folder is foretell's: remove it even if foretell is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A process to start: what, where, in which environment, and within which limits."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    """The complete environment."""
    cwd: Path
    stdout: Path | Literal["inherit", "stderr"] = "inherit"
    stderr: Path | Literal["inherit"] = "inherit"
    timeout_seconds: float | None = None
    most_bytes: int | None = None
    """Limit on the host memory of all its processes."""
    containment: Containment | None = None
    """None: it runs in the namespaces of this process."""


class Child(Protocol):
    """A running process, started by us or forked for us; the leader of its own session."""

    pid: int
    read_only: tuple[str, ...]
    is_in_memory: bool

    def wait(self, seconds: float | None) -> bool:
        """Wait for its end, without polling, for at most `seconds`; returns whether it has ended."""

    def exit_status(self) -> int:
        """After its end; negative: the signal that killed it."""

    def end(self, directory: Path, *, grace: float) -> None:
        """Terminate what is left of the run, kill what does not exit within `grace`, and wait until it is gone."""

    def kill(self, directory: Path) -> None:
        """The same at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    exit_status: int
    limit: Literal["time", "memory", "interrupt"] | None
    """The limit that stopped it, if any, or Ctrl-C."""
    seconds: float
    read_only: tuple[str, ...] = ()
    is_in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a long run."""

    seconds: float
    num_steps: int
    reserved_bytes: int | None
    phase: str | None
    stage: Literal["start", "torch", "cuda"] = "start"
    """`torch`: it has been imported; `cuda`: the GPU is in use."""
    num_operators: int = 0
    """Operators computed so far, with `execute`."""
    remaining_seconds: float | None = None
    """With `execute`, once a step has shown its number of operators."""
    num_batches: int = 0
    """Batches looked at so far, with `worst`."""
    wait: str | None = None
    """Of a rank for another, if it has taken long: `rank 0 waits in ncclAllReduce at train.py:8 for rank 1`."""
    is_on_cpu: bool = False
    """The script trains, but has put nothing on the GPU."""


class Watch:
    """Reports the progress of a run."""

    def __init__(
        self, directory: Path, *, steps: Steps = "auto", on_progress: Callable[[Progress], None] | None = None
    ) -> None:
        self.directory = directory
        self._journals = _Journals(directory, num_steps_wanted=steps if isinstance(steps, int) else _AUTO_STEPS)
        self._on_progress = on_progress
        self.next_tick = _FIRST_PROGRESS_SECONDS if on_progress is not None else None

    def tick(self, seconds: float) -> None:
        assert self._on_progress is not None
        self._on_progress(self._journals.progress(seconds))
        self.next_tick = seconds + _PROGRESS_SECONDS


def see_to_its_end(child: Child, program: Program, watch: Watch) -> Ended:
    """Wait for the child within its limits, then end all processes it has started. The first Ctrl-C ends it as its time
    limit does; a second one raises KeyboardInterrupt, when all have been ended."""
    started = time.monotonic()
    limit: Literal["time", "memory", "interrupt"] | None = None
    try:
        try:
            limit = _wait(child, program, watch, started)
        except KeyboardInterrupt:
            limit = "interrupt"
        if limit in ("time", "interrupt"):  # its exit handlers write what is known so far
            _signal_group(child.pid, signal.SIGINT)
            child.wait(_GRACE_SECONDS)
    finally:
        try:
            child.end(watch.directory, grace=_LEFTOVER_SECONDS if limit is None else _GRACE_SECONDS)
        except KeyboardInterrupt:  # no more patience, but nothing may be left behind
            with _uninterrupted():
                child.kill(watch.directory)
            raise
    return Ended(
        exit_status=child.exit_status(),
        limit=limit,
        seconds=time.monotonic() - started,
        read_only=child.read_only,
        is_in_memory=child.is_in_memory,
    )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(child: Child, program: Program, watch: Watch, started: float) -> Literal["time", "memory"] | None:
    while True:
        seconds = time.monotonic() - started
        if program.timeout_seconds is not None and seconds >= program.timeout_seconds:
            return "time"
        if program.most_bytes is not None and host_memory.exceeds(program.most_bytes, _ancestor(child, program)):
            return "memory"
        if watch.next_tick is not None and seconds >= watch.next_tick:
            watch.tick(seconds)
        look_again = None if program.most_bytes is None else seconds + _MEMORY_SECONDS
        until = min(
            (each for each in (program.timeout_seconds, watch.next_tick, look_again) if each is not None), default=None
        )
        if child.wait(None if until is None else max(0.0, until - seconds)):
            return None


def _ancestor(child: Child, program: Program) -> int:
    """Of all processes of the run: in a namespace the parent of the program, which adopts those that lose theirs."""
    return (host_memory.parent_of(child.pid) if program.containment is not None else None) or child.pid


class _Journals:
    """Reads the new lines of the journals."""

    def __init__(self, directory: Path, *, num_steps_wanted: int) -> None:
        self._directory = directory
        self._num_steps_wanted = num_steps_wanted
        self._num_operators = self._operators_of_steps = self._num_batches = 0
        self._readers: dict[Path, JournalReader] = {}
        self._num_steps = 0
        self._reserved: int | None = None
        self._phase: str | None = None
        self._stage: Literal["start", "torch", "cuda"] = "start"
        self._waits: dict[Path, str] = {}
        self._is_training = self._has_cuda = False

    def progress(self, seconds: float) -> Progress:
        with contextlib.suppress(OSError):
            for path in self._directory.glob("journal-*.jsonl"):
                self._read(path)
        return Progress(
            seconds=seconds,
            num_steps=self._num_steps,
            reserved_bytes=self._reserved,
            phase=self._phase,
            stage=self._stage,
            num_operators=self._num_operators,
            num_batches=self._num_batches,
            wait=next(iter(self._waits.values()), None),
            remaining_seconds=self._remaining_seconds(seconds),
            is_on_cpu=self._is_training and not (self._has_cuda or self._reserved),
        )

    def _remaining_seconds(self, seconds: float) -> float | None:
        """Assumes as many operators per step, and as much time per operator, as so far."""
        if not self._operators_of_steps or not self._num_steps:
            return None
        wanted = self._operators_of_steps / self._num_steps * self._num_steps_wanted
        return max(0.0, (wanted - self._num_operators) * seconds / self._num_operators)

    def _read(self, path: Path) -> None:
        reader = self._readers.setdefault(path, JournalReader(path))
        for line in reader.read_new():
            self._waits.pop(path, None)  # it does something else
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if line["kind"] == "step":
                    self._num_steps = max(self._num_steps, int(line["index"]) + 1)
                    self._reserved = max((int(d["peak_reserved_bytes"]) for d in line["devices"]), default=None)
                    self._operators_of_steps = self._num_operators
                    self._is_training, self._has_cuda = True, False  # its counters tell more
                elif line["kind"] == "phase":
                    self._phase = str(line["phase"])
                    self._is_training |= self._phase == "backward"
                elif line["kind"] == "cuda":
                    self._has_cuda = True
                    self._stage = "cuda"
                elif line["kind"] == "torch" and self._stage == "start":
                    self._stage = "torch"
                elif line["kind"] == "batch":
                    self._num_batches += not line.get("is_trained", True)
                elif line["kind"] == "rank_waits":
                    self._waits[path] = str(line["text"])
                elif line["kind"] == "operators":
                    self._num_operators = int(line["count"])


# --- leaving nothing behind -------------------------------------------------------------------------------------------


def end_everything(child: Child, directory: Path, *, grace: float) -> None:
    """`Child.end` for a process in our own namespaces: with a grace of 0 it is killed."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _GRACE_SECONDS))[0 if grace else 1 :]:
        left = _left(child.pid, directory)
        for pid in left:
            _signal(pid, number)
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            if child.wait(0.01):  # only other processes are left
                time.sleep(0.01)
            left = _left(child.pid, directory)
        if not left:
            break
    child.wait(None)


def _left(session: int, directory: Path) -> list[int]:
    """Live processes of the child's session, and any with this capture in their environment."""
    marker = f"FORETELL_LOG={directory / 'native'}\0".encode()
    left: list[int] = []
    if not os.path.isdir("/proc"):
        return left
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                state, _, _, of_session = file.read().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
            is_ours = int(of_session) == session
            if not is_ours:
                with open(f"/proc/{entry.name}/environ", "rb") as file:
                    is_ours = marker in file.read()
        except (OSError, ValueError):
            continue
        if is_ours:
            left.append(int(entry.name))
    return left


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
