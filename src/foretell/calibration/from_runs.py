"""A profile from a few measured runs: scripts, and the most that nvidia-smi showed while each ran. Anybody who can run
jobs on a cluster can collect these.

Each run is repeated on the virtual GPU. What was measured beyond PyTorch's reserved memory and the libraries it used is
the context of that machine; how much the runs differ in it is what the profile does not know.
"""

from __future__ import annotations

import csv
import io
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell import api, disk
from foretell.errors import ForetellError, UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, Job
from foretell.records import Gpu, LibraryBytes, Profile
from foretell.rules import library_bytes, loaded_libraries
from foretell.runs import OUTPUT, Warm
from foretell.units import MIB, format_bytes, parse_bytes

COLUMNS = ("command", "peak")
FEWEST = 2
_MOST_BYTES = 1 * MIB
_MOST_RUNS = 1000
_RESOLUTION_BYTES = 1 * MIB
"""Of nvidia-smi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    command: tuple[str, ...]
    peak_bytes: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRun:
    """On the virtual GPU."""

    measured: MeasuredRun
    reserved_bytes: int
    """By PyTorch, and by others that ask the driver."""
    functions: frozenset[str]
    """Of NVIDIA's libraries."""
    has_convolutions: bool
    torch_version: str
    cuda_version: str
    cudnn_version: int

    def context_bytes(self, libraries: LibraryBytes) -> int:
        """What is left of the measured peak for the context."""
        _, loaded = loaded_libraries(libraries, self.functions)
        return self.measured.peak_bytes - self.reserved_bytes - loaded


def read_runs(path: Path) -> list[MeasuredRun]:
    name = f"--from-runs {path}"
    try:
        text = disk.read(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")
        lines = csv.DictReader(io.StringIO(text), strict=True)
        rows = [(lines.line_num, row) for row in lines]
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name}: not a CSV file: {error}.") from None
    if not set(COLUMNS) <= set(lines.fieldnames or ()):
        found = ", ".join(lines.fieldnames or ()) or "nothing"
        raise UsageError(f"{name}: its first line must name the columns {' and '.join(COLUMNS)}; it has {found:.100}.")
    if not FEWEST <= len(rows) <= _MOST_RUNS:
        raise UsageError(f"{name}: has {len(rows)} runs; {FEWEST} to {_MOST_RUNS:,} are possible.")
    return [_run(row["command"], row["peak"], number, f"{name}, line {number}") for number, row in rows]


def _run(command: str | None, peak: str | None, line: int, where: str) -> MeasuredRun:
    try:
        words = tuple(shlex.split(command or ""))
        size = parse_bytes(f"{peak}MiB" if (peak or "").strip().isdecimal() else peak or "")
    except (ValueError, UsageError) as error:
        raise UsageError(f"{where}: {error}") from None
    if not words or not size:
        raise UsageError(f"{where}: needs a command and a peak, for example: train.py --batch-size 64,7106MiB")
    return MeasuredRun(command=words, peak_bytes=size, line=line)


def repeat_runs(
    runs: Sequence[MeasuredRun], gpu: Gpu, *, on_progress: Callable[[MeasuredRun], None] = lambda run: None
) -> list[RepeatedRun]:
    with Warm() as warm:
        found = []
        for each in runs:
            on_progress(each)
            found.append(_repeated(each, gpu, warm))
    return found


def _repeated(measured: MeasuredRun, gpu: Gpu, warm: Warm) -> RepeatedRun:
    options = CaptureOptions(history=False, attribution=False, stdout="file")
    job = Job(command=measured.command, gpu=gpu, context_bytes=0, options=options)
    with api.scratch() as folder:
        try:
            run = api.run(job, directory=folder, warm=warm)
            estimate = run.complete_estimate
        except ForetellError as error:
            output = folder / OUTPUT
            last = " | ".join(output.read_text(errors="replace").splitlines()[-3:]) if output.exists() else ""
            raise UsageError(f"the run of line {measured.line} cannot be repeated: {error} {last}".strip()) from None
    if estimate.oom is not None:
        raise UsageError(f"the run of line {measured.line} runs out of memory on {gpu.name}. Is it the right GPU?")
    trace, functions = run.trace, frozenset(run.trace.library_functions())
    _, loaded = loaded_libraries(trace.libraries, functions)
    return RepeatedRun(
        measured=measured,
        reserved_bytes=estimate.peak.reserved_bytes + estimate.peak.library_bytes - loaded,
        functions=functions,
        has_convolutions=estimate.evidence is not None and estimate.evidence.kind != "plain",
        torch_version=estimate.torch_version,
        cuda_version=trace.cuda_version or "",
        cudnn_version=trace.cudnn_version or 0,
    )


def fitted(runs: Sequence[RepeatedRun], gpu: Gpu) -> Profile:
    """One constant, the context, from runs without convolutions if there are enough: cuDNN's workspaces are not
    certain. Whether the libraries load all of their kernels at once follows from its size."""
    plain = [run for run in runs if not run.has_convolutions]
    used = plain if len(plain) >= FEWEST else list(runs)
    libraries = library_bytes(gpu, is_eager=False)
    for _ in range(2):
        context = round(statistics.median(run.context_bytes(libraries) for run in used))
        libraries = library_bytes(gpu, context_bytes=max(0, context))
    contexts = [run.context_bytes(libraries) for run in used]
    context = round(statistics.median(contexts))
    if context <= 0:
        worst = min(used, key=lambda run: run.context_bytes(libraries))
        raise UnsupportedError(
            f"the runs do not fit the estimates: in line {worst.measured.line}, "
            f"{format_bytes(worst.measured.peak_bytes)} were measured, but PyTorch reserves "
            f"{format_bytes(worst.reserved_bytes)} here. Is it the same script, with the same torch, on the same GPU?"
        )
    more = 1 + 4 / len(used)  # few runs do not show how far others may lie
    first = used[0]
    return Profile(
        device_name=gpu.device_name,
        total_bytes=gpu.total_bytes,
        torch_version=first.torch_version,
        cuda_version=first.cuda_version,
        cudnn_version=max(run.cudnn_version for run in runs),
        driver_version="",
        context_bytes=context,
        libraries=libraries,
        convolutions=(),
        num_runs=len(used),
        context_below_bytes=min(context, max(_RESOLUTION_BYTES, round(more * (context - min(contexts))))),
        context_above_bytes=max(_RESOLUTION_BYTES, round(more * (max(contexts) - context))),
    )
