"""One job, from the command to the `Estimate`: what `foretell run` is made of, and what Python users call."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from foretell import gpus
from foretell import trace as trace_file
from foretell.calibration import Profile
from foretell.capture import CaptureOptions, Command, Progress, launch, resolve
from foretell.capture.launch import Steps, make_directory
from foretell.errors import UnsupportedError, UsageError
from foretell.overhead import library_bytes
from foretell.records import CaptureResult, Engine, Estimate, Gpu
from foretell.trace import Trace
from foretell.units import parse_bytes
from foretell.verdict import estimate_of

DEFAULT_GPU = "a100-80gb"
"""A job nobody named a card for gets one with much memory, so that its need is found rather than a limit."""

_NO_ROOM_BYTES = 64 << 10


def run(
    command: Command,
    *,
    gpu: Gpu,
    context_bytes: int | None = None,
    used_by_others_bytes: int = 0,
    profile: Profile | None = None,
    options: CaptureOptions,
    trace_path: Path | None = None,
    writes_path: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    directory: Path | None = None,
    launcher: Callable[..., CaptureResult] = launch,
    on_trace: Callable[[Trace], None] | None = None,
) -> Estimate:
    """Captures the command, saves the trace if asked to (also of a run that failed), and estimates."""
    started = time.monotonic()
    libraries = library_bytes(gpu)
    if profile is not None:
        _check_profile(profile, gpu)
        libraries = replace(profile.libraries, nccl=libraries.nccl)  # a single card has nobody to talk to
        options = replace(options, workspaces=profile.workspaces())
        context_bytes = profile.context_bytes if context_bytes is None else context_bytes
    for option, taken in (("--context", context_bytes or 0), ("--used-by-others", used_by_others_bytes)):
        if taken >= gpu.total_bytes:
            raise UsageError(f"{option} {taken} bytes: the card has {gpu.total_bytes} in all.")
    with contextlib.ExitStack() as stack:
        folder = directory or stack.enter_context(scratch())
        result = launcher(
            command,
            gpu=gpu,
            context_bytes=gpu.context_bytes if context_bytes is None else context_bytes,
            is_context_given=context_bytes is not None,
            libraries=libraries,
            used_by_others_bytes=used_by_others_bytes,
            directory=folder,
            options=options,
            on_progress=on_progress,
        )
        if shutil.disk_usage(folder).free < _NO_ROOM_BYTES:
            raise UnsupportedError(
                f"the disk of the capture folder {folder.parent} is full, so not all of the run is known. "
                "Set TMPDIR to a folder with some room."
            )
        captured = trace_file.from_capture(result)
        if profile is not None and captured.torch_version not in (None, profile.torch_version):
            caveat = f"the profile was measured with torch {profile.torch_version}, this is {captured.torch_version}"
            captured = replace(captured, caveats=(*captured.caveats, caveat))
        captured = replace(captured, seconds={**captured.seconds, "total": time.monotonic() - started})
        if trace_path is not None:
            trace_file.save(captured, trace_path)
        if on_trace is not None:
            on_trace(captured)
        if writes_path is not None:
            _keep_writes(folder / "overlay", writes_path)
        return estimate_of(captured, attributes=options.attribution)


def _check_profile(profile: Profile, gpu: Gpu) -> None:
    if profile.device_name != gpu.device_name:
        raise UsageError(
            f"the profile is of a {profile.device_name}, --gpu is a {gpu.device_name}. Leave --gpu out to use the "
            "profile's."
        )


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A capture folder that goes away; a file in it that cannot be removed is no reason to fail."""
    try:
        path = Path(tempfile.mkdtemp(prefix="foretell-"))
    except OSError as error:
        raise UnsupportedError(
            f"no folder for the capture: {error.strerror}. Set TMPDIR to one with some room."
        ) from None
    try:
        yield make_directory(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _keep_writes(overlay: Path, target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        if overlay.is_dir():
            shutil.copytree(overlay, target, dirs_exist_ok=True, symlinks=True)
    except OSError as error:
        raise UsageError(f"the files the script wrote cannot be kept in {target}: {error.strerror or error}.") from None


def estimate(
    job: Sequence[str] | Callable[..., object],
    *,
    gpu: str | Gpu = DEFAULT_GPU,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    steps: Steps = "auto",
    engine: Engine | Literal["auto"] = "auto",
    context: str | int | None = None,
    used_by_others: str | int = 0,
    timeout: float | None = None,
    trace: str | Path | None = None,
    keep_init: bool = False,
    online: bool = False,
) -> Estimate:
    """The memory a job needs on a card that is not there.

    `job` is a command (`["train.py", "--batch-size", "64"]`, as after `foretell run`) or a function, called with
    `args` and `kwargs`. Either runs in a child process. Running out of memory is a verdict (`.verdict == "oom"`); a
    script that fails by itself raises `ScriptError`, and what cannot be estimated `UnsupportedError`.
    """
    if isinstance(job, str):
        raise UsageError(f"a command is a list of words: foretell.estimate({job.split()!r}, ...)")
    card = gpus.find(gpu) if isinstance(gpu, str) else gpu
    options = CaptureOptions(
        steps=steps, engine=engine, skip_init=not keep_init, offline=not online, timeout_seconds=timeout
    )
    with scratch() as directory:
        if callable(job):
            command = _call(job, args, kwargs or {}, directory, engine)
        else:
            command = _command(job, args, kwargs, engine)
        return run(
            command,
            gpu=card,
            context_bytes=parse_bytes(context) if isinstance(context, str) else context,
            used_by_others_bytes=parse_bytes(used_by_others) if isinstance(used_by_others, str) else used_by_others,
            options=options,
            trace_path=Path(trace) if trace is not None else None,
            directory=directory,
        )


def _command(
    words: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any] | None, engine: Engine | Literal["auto"]
) -> Command:
    if args or kwargs:
        raise UsageError("args and kwargs are for a function; a command has its arguments in the list.")
    return resolve([str(word) for word in words], engine=engine)


def _call(
    function: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    directory: Path,
    engine: Engine | Literal["auto"],
) -> Command:
    """A child that unpickles the function and calls it."""
    import cloudpickle

    runner = Path(__file__).parent / "capture" / "call.py"
    command = resolve([str(runner), str(directory / "call.pickle")], engine=engine)
    try:
        payload = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(
            f"{name} and its arguments must be picklable to run in a child process: {type(error).__name__}: {error}. "
            "Make models, data loaders and files inside the function."
        ) from None
    with (directory / "call.pickle").open("wb") as file:
        pickle.dump(list(sys.path), file)
        file.write(payload)
    return command
