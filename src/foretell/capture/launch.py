"""Starts a command as a child on the virtual GPU, waits for it, and leaves nothing of it running."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.capture.command import Command
from foretell.errors import UnsupportedError, UsageError
from foretell.records import CaptureResult, Gpu, LibraryBytes
from foretell.virtual import are_libraries_there, environment, library_paths
from foretell.virtual.environment import Events

Steps = Literal["auto", "all"] | int

OUTPUT = "output.txt"
"""In the capture folder: what the script printed, where that is not for the terminal."""

_HERE = Path(__file__).parent
# How long a process may take to end in its own way before it is killed.
_GRACE_SECONDS = 5.0
_LEFTOVER_SECONDS = 1.0
_FIRST_PROGRESS_SECONDS = 2.0
_PROGRESS_SECONDS = 1.0
_AUTO_STEPS = 3
"""What `auto` takes at least, and most often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What is done to the run; `capture/inside` is told most of it."""

    steps: Steps = "auto"
    skip_init: bool = True
    """Skip weight initialisation where that cannot change what the script does."""
    overlay: bool = True
    """Send the files the script writes to a scratch folder."""
    offline: bool = True
    """Keep trackers and hubs offline."""
    history: bool = True
    attribution: bool = True
    """Tell who holds the memory: modules, parameters, gradients, optimizer state."""
    values: bool = True
    events: Events = "late"
    """When work on another stream counts as done: as late as a real card could be, or at once."""
    assume: Literal["low", "typical", "high"] = "typical"
    """Where a value that is not known decides a size: none, half or all of the elements."""
    engine: Literal["auto", "virtual", "cpu"] = "auto"
    """`auto`: the virtual GPU, and the CPU engine where torch has no CUDA."""
    execute: bool = False
    """The CPU engine really computes, on the CPU."""
    workspaces: str = ""
    """What cuDNN asked for on a real card, a convolution a line, as native/convolution.c reads it."""
    timeout_seconds: float | None = None
    stdout: Literal["inherit", "stderr", "file"] = "inherit"
    """Where the script's standard output goes; `stderr` when ours carries the result; `file`: with its standard error
    to OUTPUT in the capture folder."""
    survey: bool = False
    """Note what of the training could be done otherwise (`capture/inside/survey.py`)."""
    alternatives: tuple[str, ...] = ()
    """What is done otherwise than the script says (`capture/inside/alternatives.py`)."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the environment, set for the run alone."""

    def __post_init__(self) -> None:
        if isinstance(self.steps, int) and self.steps < 1:
            raise UsageError(f"--steps {self.steps}: a number of steps is 1 or more, or auto, or all.")
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise UsageError(f"--timeout {self.timeout_seconds:g}: a time limit is more than 0 seconds.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run that takes its time has come to."""

    seconds: float
    num_steps: int
    reserved_bytes: int | None
    phase: str | None
    num_operators: int = 0
    """Computed so far, with `execute`."""
    remaining_seconds: float | None = None
    """With `execute`, once a step has shown how many operators it has."""


def launch(
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
    """Runs the command to its end; the capture folder is then as docs/architecture.md describes it."""
    variables = child_environment(gpu, context_bytes + used_by_others_bytes, libraries, directory, options)
    started = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(open(directory / OUTPUT, "wb")) if options.stdout == "file" else None
            # A session of its own: a Ctrl-C reaches it once, through us, and everything it starts can be found and
            # ended.
            child = subprocess.Popen(
                command.argv,
                env=variables,
                stdout=2 if options.stdout == "stderr" else output,
                stderr=output,
                start_new_session=True,
            )
    except OSError as error:
        raise UsageError(f"cannot start {command.argv[0]}: {error.strerror or error}.") from None
    journals = _Journals(directory, num_steps_wanted=options.steps if isinstance(options.steps, int) else _AUTO_STEPS)

    def tick() -> None:
        if on_progress is not None:
            on_progress(journals.progress(time.monotonic() - started))

    is_timed_out = False
    try:
        is_timed_out = not _wait(child, deadline=_deadline(started, options), tick=tick)
    except KeyboardInterrupt:
        _signal_group(child.pid, signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C ends the patience
            _wait(child, deadline=time.monotonic() + _GRACE_SECONDS, tick=None)
        raise
    finally:
        _end_everything(child, directory, grace=_GRACE_SECONDS if is_timed_out else _LEFTOVER_SECONDS)
    return CaptureResult(
        directory=directory,
        command=command.argv,
        gpu=gpu,
        context_bytes=context_bytes,
        is_context_given=is_context_given,
        libraries=libraries,
        used_by_others_bytes=used_by_others_bytes,
        exit_status=child.returncode,
        is_timed_out=is_timed_out,
        seconds=time.monotonic() - started,
        variables=options.variables,
    )


def child_environment(
    gpu: Gpu, context_bytes: int, libraries: LibraryBytes, directory: Path, options: CaptureOptions
) -> dict[str, str]:
    inside = {
        "directory": str(directory),
        "steps": options.steps,
        "skip_init": options.skip_init,
        "overlay": options.overlay,
        "offline": options.offline,
        "history": options.history,
        "attribution": options.attribution,
        "values": options.values,
        "assume": options.assume,
        "engine": options.engine,
        "execute": options.execute,
        "survey": options.survey,
        "alternatives": options.alternatives,
    }
    # The CPU engine does without; but a torch with CUDA asks the driver, and this one has an answer.
    is_preloaded = options.engine == "virtual" or are_libraries_there()
    measured = {}
    if options.workspaces:
        (directory / "workspaces").write_text(options.workspaces)
        measured["FORETELL_WORKSPACES"] = str(directory / "workspaces")
    paths = [str(_HERE / "bootstrap"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **environment(
            gpu,
            context_bytes=context_bytes,
            libraries=libraries,
            log_prefix=str(directory / "native"),
            events=options.events,
            is_preloaded=is_preloaded,
        ),
        **measured,
        **({"TRITON_LIBCUDA_PATH": str(_linker_folder(directory))} if is_preloaded else {}),
        **_compile_caches(directory),
        **dict(options.variables),
        "FORETELL_CAPTURE": json.dumps(inside),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _linker_folder(directory: Path) -> Path:
    """Triton links what it compiles to the driver, by the name `libcuda.so` that only development packages bring."""
    folder = directory / "linker"
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / name).symlink_to(library_paths().cuda)
    return folder


def _compile_caches(directory: Path) -> dict[str, str]:
    """Folders of our own: what torch.compile and Triton keep was tuned on a GPU that computes nothing, and a real one
    must not find it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "foretell" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = directory / "compiled"
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def make_directory(path: Path) -> Path:
    """The capture folder; a full or read-only disk is said before anything runs."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / ".room").write_bytes(bytes(4096))
        (path / ".room").unlink()
    except OSError as error:
        reason = "no room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise UnsupportedError(
            f"the capture folder {path} cannot be written: {reason}. Set TMPDIR to a folder with some room."
        ) from None
    return path


# --- waiting ----------------------------------------------------------------------------------------------------------


def _deadline(started: float, options: CaptureOptions) -> float | None:
    return None if options.timeout_seconds is None else started + options.timeout_seconds


def _wait(child: subprocess.Popen[bytes], *, deadline: float | None, tick: Callable[[], None] | None) -> bool:
    """True when the child has ended, False at the deadline. A pidfd wakes us at once: nothing is polled."""
    next_tick = time.monotonic() + _FIRST_PROGRESS_SECONDS
    with _pidfd(child.pid) as handle:
        while child.poll() is None:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            if tick is not None and now >= next_tick:
                tick()
                next_tick = now + _PROGRESS_SECONDS
            until = min(filter(None, (deadline, next_tick if tick else None)), default=now + 60)
            _sleep_or_end(child, handle, max(0.0, until - now))
    return True


def _sleep_or_end(child: subprocess.Popen[bytes], handle: int | None, seconds: float) -> None:
    if handle is not None:
        select.select([handle], [], [], seconds)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    if not hasattr(os, "pidfd_open"):  # not Linux
        yield None
        return
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


class _Journals:
    """Reads what the journals have gained since the last look."""

    def __init__(self, directory: Path, *, num_steps_wanted: int) -> None:
        self._directory = directory
        self._num_steps_wanted = num_steps_wanted
        self._num_operators = self._operators_of_steps = 0
        self._offsets: dict[Path, int] = {}
        self._num_steps = 0
        self._reserved: int | None = None
        self._phase: str | None = None

    def progress(self, seconds: float) -> Progress:
        with contextlib.suppress(OSError):
            for path in self._directory.glob("journal-*.jsonl"):
                self._read(path)
        return Progress(
            seconds=seconds,
            num_steps=self._num_steps,
            reserved_bytes=self._reserved,
            phase=self._phase,
            num_operators=self._num_operators,
            remaining_seconds=self._remaining_seconds(seconds),
        )

    def _remaining_seconds(self, seconds: float) -> float | None:
        """The steps to come have as many operators as those that were; each takes as long as those so far."""
        if not self._operators_of_steps or not self._num_steps:
            return None
        wanted = self._operators_of_steps / self._num_steps * self._num_steps_wanted
        return max(0.0, (wanted - self._num_operators) * seconds / self._num_operators)

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        for raw in whole.splitlines():
            # Few kinds matter here, and a long run has many lines.
            if not any(kind in raw for kind in (b'"kind": "step"', b'"kind": "phase"', b'"kind": "operators"')):
                continue
            with contextlib.suppress(ValueError, KeyError, TypeError):
                line = json.loads(raw)
                if line["kind"] == "step":
                    self._num_steps = max(self._num_steps, int(line["index"]) + 1)
                    self._reserved = max((int(d["peak_reserved_bytes"]) for d in line["devices"]), default=None)
                    self._operators_of_steps = self._num_operators
                elif line["kind"] == "phase":
                    self._phase = str(line["phase"])
                elif line["kind"] == "operators":
                    self._num_operators = int(line["count"])


# --- leaving nothing behind -------------------------------------------------------------------------------------------


def _end_everything(child: subprocess.Popen[bytes], directory: Path, *, grace: float) -> None:
    """Asks whatever is left of the run to end, then ends it, and waits until it is gone."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _GRACE_SECONDS)):
        left = _left(child.pid, directory)
        for pid in left:
            _signal(pid, number)
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            child.poll()
            time.sleep(0.01)
            left = _left(child.pid, directory)
    child.wait()


def _left(session: int, directory: Path) -> list[int]:
    """Live processes of the child's session, and any that carry this capture's name in their environment."""
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
