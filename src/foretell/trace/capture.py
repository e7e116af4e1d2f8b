"""Builds a `Trace` from the capture folder (docs/architecture.md), including the files of a killed process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell import __version__
from foretell.allocator import AllocatorSettings
from foretell.jobs import CaptureResult
from foretell.protocol.journal import WRITES, read_journal
from foretell.trace.history import JoinedHistory, read_history
from foretell.trace.journal import Told, devices_of, read_lines, whole_lines
from foretell.trace.machine_code import resources
from foretell.trace.native import NativeLog, read_native
from foretell.trace.operators import read_operators
from foretell.trace.owners import read_owners
from foretell.trace.records import (
    Counted,
    DriverEvents,
    GpuProcess,
    KernelCode,
    MissingFunction,
    ScriptException,
    Trace,
    Unsupported,
)
from foretell.units import format_bytes

_NOT_OBSERVED = (
    "{} of the processes on the GPU did not load foretell's hooks (not Python, or Python with -I, -E, -S or another "
    "environment): only its memory is known, not its steps or who holds it"
)


def from_capture(result: CaptureResult) -> Trace:
    """Read the capture folder; if several processes used the GPU, the one that held the most. The ranks of a job each
    have a trace (`Trace.other_ranks`)."""
    with _without_garbage_collection():
        return _read(result)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Reading creates millions of small objects without cycles; looking for cycles takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(result: CaptureResult) -> Trace:
    paths = sorted(result.directory.glob("journal-*.jsonl"))
    journals = {_pid_of(path): whole_lines(read_journal(path)) for path in paths}
    pids = set(journals) | {_pid_of(path) for path in result.directory.glob("native-*.bin")}
    native = {pid: read_native(result.directory, pid) for pid in sorted(pids)}
    ranks = _ranks(journals)
    if len(ranks) > 1:
        return _read_ranks(result, ranks, journals, native)
    on_gpu = [pid for pid in sorted(pids) if _uses_gpu(journals.get(pid, []), native[pid].driver)]
    pid = max(on_gpu, key=lambda p: _peak_reserved(journals.get(p, []), native[p].driver), default=None)
    if pid is None:
        # The first process is the one the user started; it names its torch version, if any.
        pid = min(journals, key=lambda p: _time_of(journals[p]), default=None)
    others = [line for p, lines in journals.items() if p != pid for line in lines] + _writes(result)
    hidden = sum(p not in journals and _peak_reserved([], native[p].driver) > 0 for p in on_gpu)
    others += [{"kind": "caveat", "time_us": 0, "text": _NOT_OBSERVED.format(hidden)}] if hidden else []
    # A process that only queries the card (a compile worker) uses none of its memory.
    num_gpu_processes = sum(_peak_reserved(journals.get(p, []), native[p].driver) > 0 for p in on_gpu)
    trace = _assemble(result, pid, journals.get(pid, []) if pid else [], others, native, num_gpu_processes)
    if pid is None or num_gpu_processes < 2:
        return trace
    card = native[pid].card_of(trace.busiest_device)
    found = (_gpu_process(p, journals.get(p, []), native[p], card) for p in on_gpu)
    return replace(trace, gpu_processes=tuple(each for each in found if each.peak_bytes))


def _writes(result: CaptureResult) -> list[dict[str, Any]]:
    path = result.directory / WRITES
    return whole_lines(read_journal(path)) if path.exists() else []


# --- several ranks ----------------------------------------------------------------------------------------------------


def _ranks(journals: dict[int, list[dict[str, Any]]]) -> dict[int, int]:
    """Each rank's process; the last one, if it was started again."""
    found: dict[int, tuple[int, int]] = {}
    for pid, lines in journals.items():
        for line in lines:
            if line["kind"] == "rank":
                found[int(line["rank"])] = max(found.get(int(line["rank"]), (0, 0)), (int(line["time_us"]), pid))
    return {rank: pid for rank, (_, pid) in sorted(found.items())}


def _read_ranks(
    result: CaptureResult,
    ranks: dict[int, int],
    journals: dict[int, list[dict[str, Any]]],
    native: dict[int, NativeLog],
) -> Trace:
    shared = [line for pid, lines in journals.items() if pid not in ranks.values() for line in lines] + _writes(result)
    # The launcher's own failure follows from that of a rank.
    shared = [line for line in shared if line["kind"] != "exception"]
    traces = [_assemble(result, pid, journals[pid], shared, {pid: native[pid]}, 1) for pid in ranks.values()]
    traces = [_with_whom_it_was_needed_by(each, journals) for each in traces]
    first = _first_exception(ranks, journals)
    if first is not None and first.is_oom:
        traces = [each if _has_run_out(each) else replace(each, exception=None) for each in traces]
    elif first is not None:
        traces = [replace(each, exception=first) for each in traces]
    if clash := _shared_card(traces, native):
        traces = [replace(each, unsupported=(*each.unsupported, clash)) for each in traces]
    worst = max(traces, key=lambda each: (_has_run_out(each), _most_reserved(each)))
    return replace(worst, other_ranks=tuple(each for each in traces if each is not worst))


def _with_whom_it_was_needed_by(trace: Trace, journals: dict[int, list[dict[str, Any]]]) -> Trace:
    lines = [line for each in journals.values() for line in each if line["kind"] == "rank_needed"]
    asked = [line for line in lines if trace.rank is not None and line["rank"] == trace.rank.rank]
    if trace.rank is None or not asked:
        return trace
    first = min(asked, key=lambda line: int(line["time_us"]))
    where = first.get("where")
    mark = replace(trace.rank, needed_by=int(first["by"]), needed_where=None if where is None else str(where))
    return replace(trace, rank=mark)


def _has_run_out(trace: Trace) -> bool:
    return trace.exception is not None and trace.exception.is_oom


def _most_reserved(trace: Trace) -> int:
    seen = [*(device for step in trace.steps for device in step.devices), *trace.final]
    return max((*(device.peak_reserved_bytes for device in seen), *trace.driver.in_use), default=0)


def _first_exception(ranks: dict[int, int], journals: dict[int, list[dict[str, Any]]]) -> ScriptException | None:
    """Those of other ranks follow from it."""
    raised = [
        (int(line["time_us"]), rank, line)
        for rank, pid in ranks.items()
        for line in journals[pid]
        if line["kind"] == "exception" and not line.get("thread")
    ]
    if not raised:
        return None
    _, rank, line = min(raised, key=lambda each: each[0])
    told = read_lines([line], [])
    return replace(told.exception, rank=rank) if told.exception is not None else None


def _shared_card(traces: list[Trace], native: dict[int, NativeLog]) -> Unsupported | None:
    """NCCL refuses two ranks on one card; the virtual one does not, because it meets them one by one."""
    users: dict[tuple[int, int], int] = {}
    for trace in traces:
        if trace.pid is None or trace.rank is None or not trace.final:  # a killed one has not said which card
            continue
        if not any(count > 1 for count in trace.collectives.num_ranks):
            continue
        node = trace.rank.rank // (trace.rank.gpus_per_node or trace.rank.world_size)
        card = node, native[trace.pid].card_of(trace.busiest_device)
        if card in users:
            return Unsupported(
                what=f"ranks {users[card]} and {trace.rank.rank} both used GPU {card[1]}, which NCCL refuses "
                "(Duplicate GPU detected)",
                hint="Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is put on the GPU",
            )
        users[card] = trace.rank.rank
    return None


# --- one process ------------------------------------------------------------------------------------------------------


def _gpu_process(pid: int, lines: list[dict[str, Any]], native: NativeLog, card: int) -> GpuProcess:
    """Each process numbers the devices that it sees, so the same number may be another card."""
    counted = (d.peak_reserved_bytes for line in lines for d in devices_of(line) if native.card_of(d.device) == card)
    in_use = (
        used for used, d in zip(native.driver.in_use, native.driver.device, strict=True) if native.card_of(d) == card
    )
    begins = (int(line["time_us"]) for line in lines if line["kind"] in ("cuda", "step", "end"))
    times = [*begins, *native.driver.time_us, *native.kernels.time_us[-1:]]
    return GpuProcess(
        pid=pid,
        begin_us=min(times, default=0),
        end_us=max((*times, *(int(line["time_us"]) for line in lines)), default=0),
        peak_bytes=max(max(counted, default=0), max(in_use, default=0)),
        functions=tuple(sorted(native.library_functions())),
    )


def _pid_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _uses_gpu(lines: list[dict[str, Any]], driver: DriverEvents) -> bool:
    return (
        len(driver.time_us) > 0
        or any(line["kind"] in ("cuda", "step") and devices_of(line) for line in lines)
        or any(line["kind"] == "cuda" for line in lines)
    )


def _peak_reserved(lines: list[dict[str, Any]], driver: DriverEvents) -> int:
    counted = (d.peak_reserved_bytes for line in lines for d in devices_of(line))
    return max(max(counted, default=0), max(driver.in_use, default=0))


def _time_of(lines: list[dict[str, Any]]) -> int:
    return min((int(line.get("time_us", 0)) for line in lines), default=0)


def _assemble(
    result: CaptureResult,
    pid: int | None,
    lines: list[dict[str, Any]],
    others: list[dict[str, Any]],
    native: dict[int, NativeLog],
    num_gpu_processes: int,
) -> Trace:
    own = native[pid] if pid is not None else NativeLog()
    history = read_history(result.directory, pid)
    owners = read_owners(result.directory, pid, history, own.workspaces)
    told = read_lines(lines, others)
    if not lines and own.num_unknown_reads:
        # The Python side knows which reads matter (those of a saved checkpoint do not); without it, all of them count.
        told.unknown_reads["a value", None] = own.num_unknown_reads
    allocator, changes = _allocator_settings(told, history)
    return Trace(
        foretell_version=__version__,
        command=result.command,
        gpu=result.job.gpu,
        context_bytes=result.empty_process_bytes,
        is_context_given=result.job.is_context_given,
        libraries=result.libraries,
        used_by_others_bytes=result.job.used_by_others_bytes,
        context_below_bytes=result.job.context_doubt[0],
        context_above_bytes=result.job.context_doubt[1],
        exit_status=result.exit_status,
        is_timed_out=result.is_timed_out,
        is_over_host_memory=result.is_over_host_memory,
        is_interrupted=result.is_interrupted,
        isolation=result.isolation,
        seconds={"total": result.seconds, "script": result.seconds, **told.seconds},
        python_version=told.python_version,
        torch_version=told.torch_version,
        cuda_version=told.cuda_version,
        cudnn_version=told.cudnn_version,
        arch_list=told.arch_list or (),
        pid=pid,
        rank=told.rank,
        num_gpu_processes=num_gpu_processes,
        allocator=allocator,
        phases_seen=told.phases_seen,
        steps=tuple(told.steps),
        final=told.final,
        is_ended=told.is_ended,
        ooms=tuple(told.ooms),
        has_trained_since_oom="backward" in told.phases_since_oom,
        exception=told.exception,
        unknown_reads=tuple(
            Counted(what=what, where=where, count=count) for (what, where), count in told.unknown_reads.most_common()
        ),
        unimplemented=_missing_functions(told.unimplemented, native.values()),
        unsupported=(
            *told.unsupported,
            *_static_runtimes(native.values()),
            *_refused_addresses(native.values()),
            *_unobserved(result),
        ),
        redirected_writes=tuple(told.redirected_writes),
        not_sent=tuple(told.not_sent),
        ended_early=tuple(told.ended_early),
        is_cut_short=told.is_cut_short,
        cut_loops=tuple(told.cut_loops),
        endless_loop=told.endless_loop,
        caveats=(*told.caveats, *changes),
        names=own.names,
        frames=tuple(history.frames),
        stacks=tuple(history.stacks),
        memory=history.events,
        labels=owners.labels,
        spans=owners.spans,
        origins=history.origins.rows,
        owners=history.names.all(),
        driver=own.driver,
        kernels=own.kernels,
        library=own.library,
        kernel_code=_kernel_code(own, result) if result.job.options.time else (),
        keepers=tuple(told.keepers),
        card_queries=tuple(told.card_queries),
        engine=told.engine,
        allocator_settings=told.allocators[-1][1] if told.allocators else None,
        cublas_workspace_config=told.cublas_workspace_config,
        library_folders=told.library_folders,
        own_folders=told.own_folders,
        is_time_asked=result.job.options.time,
        host_factor=result.job.options.host_factor,
        price_per_hour=result.job.options.price_per_hour,
        connections=result.job.options.connections,
        **own.calls,
        **_batches(told),
        **read_operators(result.directory, pid),
    )


def _kernel_code(native: NativeLog, result: CaptureResult) -> tuple[KernelCode, ...]:
    names = {native.names[number]: number for number in set(native.kernels.name)}
    found = resources(native.code, names.keys(), result.job.gpu.compute_capability, result.code_cache)
    return tuple(
        KernelCode(name=names[name], registers=registers, shared_bytes=shared)
        for name, (registers, shared) in sorted(found.items())
    )


def _batches(told: Told) -> dict[str, Any]:
    """Passes and shapes by position; a killed process may have left gaps in their numbers."""
    loaders = {number: at for at, number in enumerate(told.loaders)}
    shapes = {number: at for at, number in enumerate(told.batch_shapes)}
    return {
        "loaders": tuple(told.loaders.values()),
        "batches": tuple(replace(b, loader=loaders[b.loader], shape=shapes[b.shape]) for b in told.batches),
        "batch_shapes": tuple(told.batch_shapes.values()),
    }


def _allocator_settings(told: Told, history: JoinedHistory) -> tuple[AllocatorSettings, tuple[str, ...]]:
    """The settings in force at the first allocation, and a caveat if the script changed them afterwards."""
    first_event_us = min(history.events.time_us, default=None)
    before = [each for each in told.allocators if first_event_us is None or each[0] <= first_event_us]
    _, text, backend = (before or told.allocators or [(0, "", "native")])[-1 if before else 0]
    settings = AllocatorSettings.parse(text, told.torch_version)
    after = [each for each in told.allocators if each not in before and each[1] != text]
    changes = tuple(
        f"the script changed the allocator's settings to {changed!r} while memory was in use; the history is replayed "
        f"with the initial ones ({text!r})"
        for _, changed, _ in after[:1]
    )
    return replace(settings, is_native=backend == "native"), changes


def _missing_functions(told: dict[str, MissingFunction], native: Iterable[NativeLog]) -> tuple[MissingFunction, ...]:
    """The journal has the operator and the line; a process without the hooks has only the name."""
    missing = {
        name: MissingFunction(name=name, operator=None, where=None) for each in native for name in each.unimplemented
    }
    return tuple({**missing, **told}.values())


def _unobserved(result: CaptureResult) -> Iterator[Unsupported]:
    """A Python that ended well without having said anything."""
    if result.is_python and result.exit_status == 0 and not (result.directory / "main").exists():
        yield Unsupported(
            what="Python was started without foretell's hooks, so nothing is known about this run",
            hint="Remove the options -I, -E and -S of python, which ignore PYTHONPATH or sitecustomize.",
        )


def _static_runtimes(native: Iterable[NativeLog]) -> tuple[Unsupported, ...]:
    files = dict.fromkeys(file for each in native for file in each.static_runtimes)
    return tuple(
        Unsupported(
            what=f"{Path(file).name} contains its own copy of the CUDA runtime, which the virtual GPU cannot replace",
            hint=f"The file is {file}. Build it with the shared runtime (nvcc --cudart shared), or open an issue",
        )
        for file in files
    )


def _refused_addresses(native: Iterable[NativeLog]) -> tuple[Unsupported, ...]:
    """One for all: the process may have asked again and again."""
    most = max((size for each in native for size in each.refused_addresses), default=None)
    if most is None:
        return ()
    return (
        Unsupported(
            what=f"this machine limits address space, and the virtual GPU needs {format_bytes(most)} more of it",
            hint="Raise the limit (`ulimit -v unlimited`, or that of the batch system), or use --engine cpu",
        ),
    )
