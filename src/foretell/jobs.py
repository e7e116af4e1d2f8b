"""A job: what to run, where, and on which card. One record that serializes to JSON and has a stable key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.errors import UsageError
from foretell.plain import from_plain, parse_json, to_plain
from foretell.records import Connections, Engine, Gpu, Isolation, IsolationMode, LibraryBytes, Profile

SCHEMA = "foretell.job/1"
Steps = Literal["auto", "all", "worst"] | int
Events = Literal["late", "early"]
Workspaces = Literal["asked", "none", "next"]
WholeLoops = Literal["none", "evaluation", "all"]
Assumption = Literal["low", "typical", "high"]
_LONGEST_SECONDS = 1e8


_NOT_ISOLATED = Isolation(mode="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How a run is recorded. The options passed to the recorded process are also defined in `protocol/options.py`."""

    steps: Steps = "auto"
    whole_loops: WholeLoops = "none"
    """Which loops over a DataLoader run to their natural ends, although enough has been seen."""
    skip_init: bool = True
    """Skip weight initialization where that cannot change the behaviour of the script."""
    isolation: IsolationMode | Literal["auto"] = "auto"
    """What keeps the script from changing files and sending data: the kernel, replaced functions of Python, or nothing.
    `auto`: the kernel where it can be had, else Python."""
    keep_writes: bool = False
    """Leave the files the script writes in `overlay/` of the capture folder."""
    offline: bool = True
    """No network but loopback. Trackers and uploads never send."""
    history: bool = True
    attribution: bool = True
    """Attribute memory to modules, parameters, gradients and optimizer state."""
    values: bool = True
    events: Events = "late"
    """When work on another stream counts as finished: as late as on a real card, or immediately."""
    workspaces: Workspaces = "asked"
    """Which of cuDNN's engines computes a convolution: the one it prefers, the one with the smallest workspace, or the
    first whose workspace is another one. The difference is what its choice means for the peak."""
    assume: Assumption = "typical"
    """If a size depends on unknown tensor values: assume that none, half or all of the elements count."""
    engine: Engine | Literal["auto"] = "auto"
    """`auto`: the virtual GPU, and the CPU engine where torch has no CUDA."""
    execute: bool = False
    """The CPU engine really computes the values, on the CPU."""
    timeout_seconds: float | None = None
    most_host_bytes: int | None = None
    """Limit on the host memory of all processes of a run: one that exceeds it is stopped."""
    stdout: Literal["inherit", "stderr", "file"] = "inherit"
    """Where the script's standard output goes. `stderr`: if our stdout carries the result. `file`: together with stderr
    to `output.txt` in the capture folder, as in all forks of a warm process."""
    survey: bool = False
    """Record which training settings could be changed (`inside/watch/survey.py`)."""
    describe: bool = False
    """Describe the job at its first backward pass (`inside/describe.py`), and end there."""
    alternatives: tuple[str, ...] = ()
    """Changes to apply to the script's training (`inside/change/alternatives.py`)."""
    time: bool = False
    """Record the operators of a step, from which its time and utilization follow."""
    host_factor: float | None = None
    """How much slower the CPU beside the card is than a fast one; None: typical."""
    price_per_hour: float | None = None
    """Of the card, for what the steps cost."""
    interconnect: str | None = None
    """How the GPUs of a job are connected, as far as it is known: `nvlink` or `pcie` in a machine, `ib` or `ethernet`
    between machines, or one of each. NCCL's buffers depend on it."""
    nccl_bytes: int | None = None
    """What NCCL's buffers take of each card; None: by rule."""
    verbose: bool = False
    """Show the whole traceback also of an out-of-memory error, whose message and line are in the result."""
    phases: bool = True
    guards: bool = True
    """Refuse jobs that cannot be estimated: a card torch has no kernels for."""

    @property
    def connections(self) -> Connections:
        if self.nccl_bytes is not None:
            return "given"
        return "assumed" if self.interconnect is None else "described"

    def __post_init__(self) -> None:
        if isinstance(self.steps, int) and self.steps < 1:
            raise UsageError(f"--steps {self.steps}: must be a number (1 or more), auto, all or worst.")
        if self.host_factor is not None and not 0.1 <= self.host_factor <= 100:
            raise UsageError(f"--host-factor {self.host_factor:g}: must be a number from 0.1 to 100.")
        if self.price_per_hour is not None and not 0 < self.price_per_hour <= 1e6:
            raise UsageError(f"--price-per-hour {self.price_per_hour:g}: must be more than 0 and at most 1,000,000.")
        if self.nccl_bytes is not None and self.nccl_bytes < 0:
            raise UsageError(f"--nccl {self.nccl_bytes} bytes: must be 0 or more.")
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds <= _LONGEST_SECONDS:
            raise UsageError(
                f"--timeout {self.timeout_seconds:g}: must be more than 0 and at most {_LONGEST_SECONDS:g} seconds."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run, where, and on which card. Validated on creation; the script is looked up when the job runs."""

    command: tuple[str, ...]
    """As after `foretell run`: SCRIPT.py, -m MODULE or COMMAND, each with its arguments. With `call`: its name."""
    gpu: Gpu
    call: bytes = b""
    """A function to call instead of a command, as pickled by `runs.pickled`."""
    cwd: Path | None = None
    """The working folder, to which relative paths in the command refer; None: that of the caller."""
    environment: tuple[tuple[str, str | None], ...] = ()
    """Changes to the caller's environment variables; None unsets one."""
    files: tuple[tuple[Path, str], ...] = ()
    """Absolute paths of files, without links, and the text that the job finds in each instead of the user's; the user's
    file stays as it is, which takes isolation."""
    context_bytes: int | None = None
    """Memory of an empty CUDA process; None: as measured in the profile, otherwise a guess for the card."""
    gpus_per_node: int | None = None
    """Cards of a machine; None: as many as the launcher of the command starts processes."""
    world_size: int | None = None
    """GPUs of the whole job; None: as many as its launcher starts processes."""
    ranks: str | None = None
    """Which of its ranks to run: `auto`, `all` or a list such as `0,7,64-71`; None: all, or `auto` of several
    machines."""
    used_by_others_bytes: int = 0
    """Memory of the card used by other processes."""
    profile: Profile | None = None
    options: CaptureOptions = CaptureOptions()

    def __post_init__(self) -> None:
        command: object = self.command
        if isinstance(command, str):
            raise UsageError(f"a command must be a list of words: {command.split()!r}")
        if not self.command:
            raise UsageError(
                "nothing to run. Give a script, -m MODULE or a command: foretell run --gpu rtx-3060 train.py"
            )
        for name, value in self.environment:
            if not name or "=" in name or "\0" in name + (value or ""):
                raise UsageError(f"{name!r}={value!r} is not a variable: its name must not be empty or contain '='.")
        if self.files and self.options.isolation == "none":
            raise UsageError(
                f"--isolation none: the script must find {self.files[0][0]} changed, but your file must stay as it is, "
                "which takes --isolation kernel or python."
            )
        if self.profile is not None and self.profile.device_name != self.gpu.device_name:
            raise UsageError(
                f"the profile was measured on {self.profile.device_name}, but --gpu is {self.gpu.device_name}. Omit "
                "--gpu to use the GPU of the profile."
            )
        context_bytes = self.empty_process_bytes if self.is_context_given else None
        check_taken(self.gpu, context_bytes=context_bytes, used_by_others_bytes=self.used_by_others_bytes)

    @property
    def empty_process_bytes(self) -> int:
        if self.context_bytes is not None:
            return self.context_bytes
        return self.gpu.context_bytes if self.profile is None else self.profile.context_bytes

    @property
    def available_bytes(self) -> int:
        """Memory of the card that is available to the job in total."""
        return self.gpu.available_bytes(self.used_by_others_bytes)

    @property
    def is_context_given(self) -> bool:
        """Whether the memory of an empty process was given or measured, so that it is not a guess."""
        return self.context_bytes is not None or self.profile is not None

    @property
    def context_doubt(self) -> tuple[int, int]:
        """How much less and more the context may be than a profile says that was fitted to measured runs."""
        if self.profile is None or self.context_bytes is not None:
            return 0, 0
        return self.profile.context_below_bytes, self.profile.context_above_bytes

    @property
    def folder(self) -> Path:
        return Path.cwd() if self.cwd is None else self.cwd

    def variables(self) -> dict[str, str]:
        """The full environment the command would have without foretell."""
        merged: dict[str, str | None] = {**os.environ, **dict(self.environment)}
        return {name: value for name, value in merged.items() if value is not None}

    # --- as JSON ------------------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Identical for equal jobs, on every machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:24]

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **to_plain(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Job:
        try:
            document = parse_json(text)
            schema = document.pop("schema", None) if isinstance(document, dict) else None
            if schema != SCHEMA:
                raise ValueError(f"the schema is {schema!r} instead of {SCHEMA!r}")
            return from_plain(cls, document)
        except ValueError as error:
            raise UsageError(f"not a job: {error}. Write one with `Job.to_json`.") from None


def check_taken(gpu: Gpu, *, context_bytes: int | None, used_by_others_bytes: int) -> None:
    """Raise UsageError if `--context` or `--used-by-others` is not memory that the card has."""
    for option, size in {"--context": context_bytes or 0, "--used-by-others": used_by_others_bytes}.items():
        if size < 0:
            raise UsageError(f"{option} {size} bytes: must be 0 or more.")
        if size >= gpu.total_bytes:
            raise UsageError(f"{option} {size} bytes: {gpu.name} has only {gpu.total_bytes} bytes.")


def changes(environment: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    """Environment changes in the form of `Job.environment`."""
    return tuple(sorted((str(name), None if value is None else str(value)) for name, value in environment.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """A job that has run on the virtual GPU, and the folder with its capture files."""

    job: Job
    directory: Path
    command: tuple[str, ...]
    """The command that was started: the words of the job, resolved."""
    libraries: LibraryBytes
    empty_process_bytes: int
    exit_status: int
    """Exit status of the command, as in `subprocess`: negative means killed by that signal."""
    is_timed_out: bool
    is_over_host_memory: bool = False
    is_interrupted: bool = False
    """By Ctrl-C, SIGTERM or SIGHUP to foretell."""
    seconds: float
    isolation: Isolation = _NOT_ISOLATED
    is_python: bool = False
    """The command is a Python interpreter, or a script for one."""
    code_cache: Path | None = None
    """A folder that keeps what is known of the machine code in libraries; None: there is no place for it, or nobody
    asks."""
