"""One job, from the command to the `Estimate`: the Python API, and the core of `foretell run`."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from foretell import disk, gpus
from foretell import trace as traces
from foretell.analysis.ending import ended_by, fatal_oom
from foretell.analysis.processes import oom_together, together
from foretell.analysis.verdict import estimate_of
from foretell.errors import ForetellError, ScriptError, UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, Job, Steps, WholeLoops, changes
from foretell.records import Engine, Estimate, Gpu, IsolationMode, Need
from foretell.rules.capacity import smallest_that_fit
from foretell.rules.nccl import fabric_of
from foretell.runs import Progress, Warm, launch, pickled
from foretell.runs.calls import name_of
from foretell.runs.environment import make_directory
from foretell.runs.scratch import scratch_folder
from foretell.trace import CutLoop, Trace
from foretell.units import TIB, format_bytes, parse_bytes

DEFAULT_GPU = "a100-80gb"
"""Default if no GPU is given: large, so that the result shows the job's need and not a limit."""

_NO_ROOM_BYTES = 64 << 10
_LARGE_BYTES = TIB
"""The memory of the card that shows what a job needs that ran out of memory."""
_TIMES_THE_FIRST = 3
_LEAST_SECONDS = 60.0
"""A run that ran out of memory at its first step is repeated for several: it may take so many times as long."""
_MAX_CARDS = 3
_WHOLE_LOOPS: tuple[WholeLoops, ...] = ("evaluation", "all")
_MOST_SECONDS = 300.0
"""How long a run may take in which loops run to their ends, unless --timeout says so."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished job and its trace; a failed script has a trace, too."""

    job: Job
    trace: Trace

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate; incomplete if foretell itself stopped the script (`Estimate.ended_by`). Raises `ScriptError` if
        the script failed, with what was known by then, and `UnsupportedError` if it cannot be estimated."""
        estimate = self.estimate_so_far
        if estimate.ended_by is not None and not estimate.has_verdict:
            raise ScriptError(estimate.ended_by.message, estimate=estimate)
        return estimate

    @property
    def complete_estimate(self) -> Estimate:
        """The estimate. Raises `ScriptError` also if foretell stopped the script before its end."""
        estimate = self.estimate
        if estimate.ended_by is not None:
            raise ScriptError(estimate.ended_by.message, estimate=estimate)
        return estimate

    @cached_property
    def estimate_so_far(self) -> Estimate:
        """What is known, whatever ended the run. Raises if nothing is."""
        started = time.monotonic()
        estimate = estimate_of(self.trace, attributes=self.job.options.attribution)
        own = time.monotonic() - started
        parts = {name: estimate.seconds.get(name, 0.0) + own for name in ("total", "analysis")}
        return replace(estimate, seconds={**estimate.seconds, **parts})


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a job. What it left until then is in `run`."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run


def run(
    job: Job,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    directory: Path | None = None,
    warm: Warm | None = None,
) -> Run:
    """Run the job to its end. The capture files stay in `directory` if one is given (see docs/architecture.md); with
    `warm`, the job runs in a fork of a process that has already imported torch. Raises `Interrupted` at Ctrl-C; at a
    second one, a plain KeyboardInterrupt."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = directory or stack.enter_context(scratch())
        result = launch(job, folder, warm=warm, on_progress=on_progress)
        if shutil.disk_usage(folder).free < _NO_ROOM_BYTES:
            raise UnsupportedError(
                f"the disk of the capture folder {folder.parent} is full, so the recording is incomplete. "
                "Set TMPDIR to a folder with free space."
            )
        ended = time.monotonic()
        trace = traces.from_capture(result)
    if job.profile is not None and trace.torch_version not in (None, job.profile.torch_version):
        caveat = f"the profile was measured with torch {job.profile.torch_version}, not {trace.torch_version}"
        trace = replace(trace, caveats=(*trace.caveats, caveat))
    now = time.monotonic()
    seconds = {**trace.seconds, "total": now - started, "analysis": now - ended}
    done = Run(job=job, trace=replace(trace, seconds=seconds))
    if trace.is_interrupted:
        raise Interrupted(done)
    return done


def follow_up(
    first: Run,
    *,
    need: bool = True,
    say: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """The run, with what further runs add to it: `finish_loops` and, with `need`, `find_need`."""
    done = finish_loops(first, say=say, on_progress=on_progress)
    return find_need(done, say=say, on_progress=on_progress) if need else done


def finish_loops(
    first: Run,
    *,
    say: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """The same run, unless the script failed after foretell had ended a loop early: it may have compared what it got
    with what there is. Then a run in which such loops run to their ends, or why there is none."""
    done, spent = first, first.trace.seconds.get("total", 0.0)
    for whole in _WHOLE_LOOPS if first.job.options.steps == "auto" else ():
        if not _has_failed_after_a_cut(done.trace):
            break
        loops = [loop for loop in done.trace.cut_loops if whole in ("all", loop.kind)]
        if not loops:
            continue
        again = _with_whole_loops(first, whole, loops, spent, say, on_progress)
        if isinstance(again, str):
            caveat = f"the loops that foretell ended early were not run to their ends: {again}"
            return replace(done, trace=replace(done.trace, caveats=(*done.trace.caveats, caveat)))
        spent += again.seconds["total"]
        seconds = {**again.seconds, "total": spent, "earlier_runs": spent - again.seconds["total"]}
        done = replace(first, trace=replace(again, seconds=seconds))
    return done


def _has_failed_after_a_cut(trace: Trace) -> bool:
    if trace.unsupported or trace.unimplemented:
        return False
    end = ended_by(trace, fatal_oom(trace))
    return end is not None and end.kind == "early_end"


def _with_whole_loops(
    first: Run,
    whole: WholeLoops,
    loops: Sequence[CutLoop],
    spent: float,
    say: Callable[[str], None],
    on_progress: Callable[[Progress], None] | None,
) -> Trace | str:
    """The trace of another run, in which these loops are not cut, or why there is none."""
    options = first.job.options
    most = _MOST_SECONDS if options.timeout_seconds is None else options.timeout_seconds - spent
    known = [loop.remaining_seconds for loop in loops if loop.remaining_seconds is not None]
    if not known:
        most = min(most, _LEAST_SECONDS)
    expected = first.trace.seconds.get("total", 0.0) + sum(known)
    if expected > most:
        return f"this would take at least {_duration(expected)}; --timeout SECONDS allows more than {_duration(most)}"
    of = "evaluation " if whole == "evaluation" else ""
    say(f"the script failed after a loop had been ended early; running it again with whole {of}loops (Ctrl-C skips it)")
    # Its output is not shown: the user has seen most of it.
    options = replace(options, whole_loops=whole, timeout_seconds=most, stdout="file")
    try:
        again = run(replace(first.job, options=options), on_progress=on_progress).trace
    except Interrupted:
        return "that run was interrupted"
    except ForetellError as error:
        return str(error).rstrip(".")
    if again.is_timed_out:
        return f"this took more than {_duration(most)}; --timeout SECONDS allows more"
    return again


def _duration(seconds: float) -> str:
    for length, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def find_need(
    first: Run,
    *,
    say: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """The same run; if it ran out of memory, with what it needs, or why that is not known. The job is run again for
    that, on a card of the same kind with much more memory, for a time that depends on what the first run took."""
    trace = first.trace
    oom = fatal_oom(trace)
    if trace.unsupported or trace.unimplemented:
        return first
    if oom is None:
        if oom_together(trace, together(trace)) is None or ended_by(trace, None) is not None:
            return first
        return replace(first, trace=replace(trace, need=need_of(first.estimate_so_far)))
    if ended_by(trace, oom) is not None:
        return replace(first, trace=replace(trace, need_unknown="the run was stopped"))
    say("out of memory; running again on a larger card to see how much it needs (Ctrl-C skips this)")
    started = time.monotonic()
    need, why = _need_of(first, on_progress)
    seconds = {**trace.seconds, "need": time.monotonic() - started}
    return replace(first, trace=replace(trace, need=need, need_unknown=why, seconds=seconds))


def _need_of(first: Run, on_progress: Callable[[Progress], None] | None) -> tuple[Need | None, str | None]:
    """The need, or why it is not known."""
    job, first_seconds = first.job, first.trace.seconds["total"]
    seconds = max(_LEAST_SECONDS, _TIMES_THE_FIRST * first_seconds)
    if job.options.timeout_seconds is not None:
        seconds = min(seconds, job.options.timeout_seconds - first_seconds)
    if seconds <= 0:
        return None, "no time was left (--timeout)"
    large = with_much_memory(job.gpu)
    # Its output is not shown: the user has seen it once.
    options = replace(job.options, timeout_seconds=seconds, stdout="file", attribution=False)
    try:
        estimate = run(replace(job, gpu=large, options=options), on_progress=on_progress).complete_estimate
    except Interrupted:
        return None, "the run on a larger card was interrupted"
    except ForetellError as error:
        return None, f"in a run on a larger card, {str(error).rstrip('.')}"
    if estimate.oom is not None and not estimate.oom.is_together:
        return None, f"it also runs out of {format_bytes(large.total_bytes)}"
    return need_of(estimate), None


def with_much_memory(gpu: Gpu) -> Gpu:
    """A card of the same kind on which a job shows what it needs."""
    return replace(gpu, total_bytes=max(_LARGE_BYTES, 8 * gpu.total_bytes))


def need_of(estimate: Estimate) -> Need:
    """What the job needs, by an estimate on a card on which it fits."""
    fitting = smallest_that_fit(gpus.all_gpus(), estimate)
    together = estimate.together
    return Need(
        device_bytes=estimate.device_bytes,
        reserved_bytes=together.reserved_bytes if together else estimate.peak.reserved_bytes,
        request_bytes=estimate.request_bytes,
        smallest_gpus=tuple(gpu.name for gpu in fitting[:_MAX_CARDS]),
    )


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary capture folder."""
    with scratch_folder() as path:
        yield make_directory(path)


def estimate(
    job: Sequence[str] | Callable[..., object],
    *,
    gpu: str | Gpu = DEFAULT_GPU,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str | None] | None = None,
    steps: Steps = "auto",
    engine: Engine | Literal["auto"] = "auto",
    context: str | int | None = None,
    used_by_others: str | int = 0,
    timeout: float | None = None,
    trace: str | Path | None = None,
    keep_init: bool = False,
    online: bool = False,
    isolation: IsolationMode | Literal["auto"] = "auto",
    world_size: int | None = None,
    ranks: str | None = None,
    gpus_per_node: int | None = None,
    nccl: str | int | None = None,
    interconnect: str | None = None,
    need: bool = True,
) -> Estimate:
    """Estimate the memory a job needs on a GPU, without that GPU.

    `job` is a command (`["train.py", "--batch-size", "64"]`, as after `foretell run`) or a function, called with `args`
    and `kwargs`. Either runs in a child process, in the folder `cwd`, with the environment changes of `env` (None
    unsets a variable).

    Running out of memory is a verdict (`.verdict == "oom"`); the job is then run again on a larger card, unless `need`
    is False, to find out what it needs (`.need`). A script that fails after foretell had ended a loop early is run
    again with the whole of its loops, if that takes no more than 5 minutes or `timeout`. Once a training step was seen,
    a script that is stopped at `timeout`, or fails after an early end, gives an incomplete estimate (`.complete`,
    `.ended_by`). A script that itself fails raises `ScriptError`, whose `.estimate` is what was known by then, or None;
    a job that cannot be estimated raises `UnsupportedError`. Ctrl-C raises `Interrupted`, with the run so far.
    """
    problem = disk.why_not_writable(Path(trace)) if trace is not None else None
    if problem is not None:
        raise UsageError(f"trace={str(trace)!r}: {problem}.")
    done = run(
        make_job(
            job, gpu=gpu, args=args, kwargs=kwargs, cwd=cwd, env=env, steps=steps, engine=engine, context=context,
            used_by_others=used_by_others, timeout=timeout, keep_init=keep_init, online=online, isolation=isolation,
            world_size=world_size, ranks=ranks, gpus_per_node=gpus_per_node, nccl=nccl, interconnect=interconnect,
        )
    )  # fmt: skip
    done = follow_up(done, need=need)
    if trace is not None:
        traces.save(done.trace, Path(trace))
    return done.estimate


def make_job(
    job: Sequence[str] | Callable[..., object],
    *,
    gpu: str | Gpu = DEFAULT_GPU,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str | None] | None = None,
    steps: Steps = "auto",
    engine: Engine | Literal["auto"] = "auto",
    context: str | int | None = None,
    used_by_others: str | int = 0,
    timeout: float | None = None,
    keep_init: bool = False,
    online: bool = False,
    isolation: IsolationMode | Literal["auto"] = "auto",
    world_size: int | None = None,
    ranks: str | None = None,
    gpus_per_node: int | None = None,
    nccl: str | int | None = None,
    interconnect: str | None = None,
) -> Job:
    """The `Job` of what Python users give: the parameters of `estimate`."""
    if isinstance(job, str):
        raise UsageError(f"a command must be a list of words, for example {job.split()!r}.")
    if not callable(job) and (args or kwargs):
        raise UsageError("args and kwargs are for functions; put the arguments of a command in its list.")
    card = gpus.find(gpu) if isinstance(gpu, str) else gpu
    fabric_of(card, interconnect)  # raises if it is none
    return Job(
        command=(name_of(job),) if callable(job) else tuple(str(word) for word in job),
        call=pickled(job, args, kwargs) if callable(job) else b"",
        gpu=card,
        cwd=None if cwd is None else Path(cwd),
        environment=changes(env or {}),
        context_bytes=parse_bytes(context) if isinstance(context, str) else context,
        used_by_others_bytes=parse_bytes(used_by_others) if isinstance(used_by_others, str) else used_by_others,
        world_size=world_size,
        ranks=ranks,
        gpus_per_node=gpus_per_node,
        options=CaptureOptions(
            steps=steps,
            engine=engine,
            skip_init=not keep_init,
            offline=not online,
            isolation=isolation,
            timeout_seconds=timeout,
            interconnect=interconnect,
            nccl_bytes=parse_bytes(nccl) if isinstance(nccl, str) else nccl,
        ),
    )
