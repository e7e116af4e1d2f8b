"""Replays the blocks of a job on a Python implementation of PyTorch's allocator and records the `Trace` a run on that
card would leave, with the analysis of each block: the input of every report."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from foretell import __version__
from foretell.allocator import AllocatorSettings, CachingAllocator, OutOfMemoryError
from foretell.allocator.blocks import Block as AllocatedBlock
from foretell.allocator.recording import RecordingAllocator
from foretell.engines.imported.analysis import JobBlock, RecordedJob
from foretell.engines.imported.library_calls import ConvolutionCall, LibraryCall
from foretell.engines.imported.moments import BEFORE, NEVER, Moment
from foretell.protocol.native_log import DIRECTIONS, WORKSPACE_SOURCES
from foretell.records import CATEGORIES, Gpu, OutOfMemory, Phase
from foretell.rules import library_bytes
from foretell.rules.capacity import Capacity, capacity_for
from foretell.trace import (
    Convolutions,
    DeviceMemory,
    DriverEvents,
    KernelLaunches,
    Labels,
    LibraryCalls,
    MemoryEvents,
    OomMark,
    Origin,
    Origins,
    ScriptException,
    Spans,
    StepMark,
    Trace,
)
from foretell.trace.origins import Names, OriginTable
from foretell.trace.recording import Recorder
from foretell.trace.records import PHASES
from foretell.units import format_bytes

_MODULE = "nn.Module: "
"""Prefix of module calls in a profile that recorded Python functions."""


def peaks(blocks: Iterable[JobBlock]) -> tuple[int, int]:
    """Peak allocated and reserved memory on a card of unlimited size."""
    allocator = CachingAllocator()
    held: dict[int, AllocatedBlock] = {}
    for number, block, is_birth in _in_order(tuple(blocks)):
        if is_birth:
            held[number] = allocator.malloc(block.num_bytes)
        else:
            allocator.free(held.pop(number))
    return allocator.peak_allocated_bytes, allocator.peak_reserved_bytes


def simulate(
    job: RecordedJob,
    gpu: Gpu,
    *,
    calls: tuple[LibraryCall | ConvolutionCall, ...] = (),
    context_bytes: int | None = None,
    command: tuple[str, ...] = (),
    caveats: tuple[str, ...] = (),
    seconds: dict[str, float] | None = None,
    torch_version: str | None = None,
) -> Trace:
    context = gpu.context_bytes if context_bytes is None else context_bytes
    libraries = library_bytes(gpu, context_bytes=context_bytes)
    names = tuple(dict.fromkeys(call.function for call in calls))
    played = _play(job, capacity_for(gpu, context_bytes=context, libraries=libraries, functions=names))
    return Trace(
        foretell_version=__version__,
        command=command,
        gpu=gpu,
        context_bytes=context,
        is_context_given=context_bytes is not None,
        libraries=libraries,
        exit_status=0 if played.oom is None else 1,
        is_timed_out=False,
        seconds=seconds or {},
        python_version=None,
        torch_version=torch_version,
        cuda_version=None,
        cudnn_version=None,
        arch_list=(),
        pid=None,
        num_gpu_processes=1,
        allocator=AllocatorSettings(),
        phases_seen=tuple(dict.fromkeys(phase for phase in job.phases if phase != "other")),
        steps=played.steps,
        final=(played.final,),
        is_ended=True,
        ooms=() if played.oom is None else (played.oom,),
        exception=None if played.oom is None else _exception(played.oom.oom),
        unknown_reads=(),
        unimplemented=(),
        unsupported=(),
        redirected_writes=(),
        not_sent=(),
        ended_early=(),
        caveats=caveats,
        names=names,
        frames=(),
        stacks=(),
        memory=played.memory,
        labels=played.labels,
        spans=played.spans,
        origins=played.origins,
        owners=played.names,
        driver=DriverEvents(),
        kernels=KernelLaunches(),
        library=_library_calls(calls, names),
        convolutions=_convolutions(calls, names),
        engine="cpu",
    )


class _Origins:
    """Origins of allocations: the operator, its callers, and in the backward pass the forward operator that made the
    autograd node, with its module if Python functions were recorded."""

    def __init__(self, job: RecordedJob) -> None:
        self.names = Names()
        self.table = OriginTable(self.names)
        self._job = job
        self._makers = {node.begin: number for number, node in job.nodes.items()}
        self._numbers: dict[tuple[int, int | None], int] = {}

    def number(self, operator: int | None) -> int:
        """Row of the operator's origin; -1 if no operator was running."""
        if operator is None:
            return -1
        begins = (self._job.operators[at].begin for at in self._job.outer(operator))
        maker = next((self._makers[begin] for begin in begins if begin in self._makers), None)
        return self._within(operator, None if maker is None else self._within(maker, None))

    def _within(self, operator: int, outermost: int | None) -> int:
        """`outermost`: row of the caller of the last enclosing operator."""
        key = operator, outermost
        if key not in self._numbers:
            name, parent = self._job.operators[operator].name, self._job.operators[operator].parent
            caller = outermost if parent is None else self._within(parent, outermost)
            module = name.removeprefix(_MODULE) if name.startswith(_MODULE) else None
            if module is None and caller is not None:
                module = self.table.at(caller).module
            self._numbers[key] = self.table.number(Origin(operator=name, module=module, caller=caller))
        return self._numbers[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    memory: MemoryEvents
    labels: Labels
    spans: Spans
    origins: Origins
    names: tuple[str, ...]
    steps: tuple[StepMark, ...]
    final: DeviceMemory
    oom: OomMark | None


def _play(job: RecordedJob, capacity: Capacity) -> _Played:
    allocator = RecordingAllocator(capacity.reservable_bytes, total_bytes=capacity.total_bytes)
    recorder, origins = Recorder(allocator), _Origins(job)
    labels, spans = Labels(), Spans()
    held: dict[int, AllocatedBlock] = {}
    steps: list[StepMark] = []
    oom: OomMark | None = None
    ends = job.step_ends
    stretches = list(_phases(job))[::-1]
    for number, block, is_birth in _in_order(job.blocks):
        tick = block.born if is_birth else block.died
        while len(steps) < len(ends) and ends[len(steps)] < tick:
            steps.append(_mark(len(steps), recorder))
        while stretches and stretches[-1][0] <= tick:
            _, phase, step = stretches.pop()
            _add_row(spans, recorder.num_events, PHASES.index(phase), step, -1)
        recorder.origin = origins.number(block.operator)
        if not is_birth:
            if number in held:
                allocated = held.pop(number)
                recorder.write("free_requested", allocated.address, block.num_bytes, 0)
                allocator.free(allocated)
            continue
        try:
            allocated = held[number] = allocator.malloc(block.num_bytes)
        except OutOfMemoryError:
            if block.is_optional:
                continue
            oom = OomMark(time_us=recorder.num_events, oom=_oom(job, block, allocator, capacity))
            break
        recorder.write("alloc", allocated.address, block.num_bytes, 0)
        _add_row(labels, recorder.num_events, 0, allocated.address, CATEGORIES.index(block.category), -1)
    if oom is None:
        steps += [_mark(index, recorder) for index in range(len(steps), len(ends))]
    return _Played(
        memory=recorder.memory,
        labels=labels,
        spans=spans,
        origins=origins.table.rows,
        names=origins.names.all(),
        steps=tuple(steps),
        final=recorder.counters(),
        oom=oom,
    )


def _phases(job: RecordedJob) -> Iterator[tuple[Moment, Phase, int]]:
    """Phase and step of the job, and the tick each begins at."""
    end = BEFORE
    for stretch in job.stretches:
        if stretch.begin > end:
            yield end, "other", bisect_right(job.step_ends, end)
        yield stretch.begin, stretch.phase, bisect_right(job.step_ends, stretch.begin)
        end = stretch.end
    yield end, "other", bisect_right(job.step_ends, end)


def _add_row(table: Labels | Spans, *row: int) -> None:
    for column, value in zip(fields(table), row, strict=True):
        getattr(table, column.name).append(value)


def _in_order(blocks: tuple[JobBlock, ...]) -> Iterator[tuple[int, JobBlock, bool]]:
    """Allocations and frees in order. At the same tick, frees come first."""
    points = [(block.born, 1, number) for number, block in enumerate(blocks)]
    points += [(block.died, 0, -number) for number, block in enumerate(blocks) if block.died != NEVER]
    points.sort()
    for _, kind, signed in points:
        yield abs(signed), blocks[abs(signed)], kind == 1


def _mark(index: int, recorder: Recorder) -> StepMark:
    return StepMark(index=index, time_us=recorder.num_events, devices=(recorder.counters(),))


def _oom(job: RecordedJob, block: JobBlock, allocator: CachingAllocator, capacity: Capacity) -> OutOfMemory:
    free = capacity.reservable_bytes - allocator.reserved_bytes
    where = job.operators[block.operator].name if block.operator is not None else None
    return OutOfMemory(
        step=job.step_at(block.born),
        phase=job.phase_of(block),
        requested_bytes=block.num_bytes,
        message=f"CUDA out of memory. Tried to allocate {format_bytes(block.num_bytes)}. GPU 0 has a total capacity of "
        f"{format_bytes(capacity.total_bytes)} of which {format_bytes(free)} is free.",
        where=where,
    )


def _exception(oom: OutOfMemory) -> ScriptException:
    return ScriptException(type="torch.OutOfMemoryError", message=oom.message, where=oom.where, is_oom=True)


def _library_calls(calls: tuple[LibraryCall | ConvolutionCall, ...], names: tuple[str, ...]) -> LibraryCalls:
    table = LibraryCalls()
    for number, call in enumerate(calls):
        if isinstance(call, LibraryCall):
            table.time_us.append(number)
            table.name.append(names.index(call.function))
            table.workspace_bytes.append(0)
            table.device.append(0)
    return table


def _convolutions(calls: tuple[LibraryCall | ConvolutionCall, ...], names: tuple[str, ...]) -> Convolutions:
    table = Convolutions()
    for number, call in enumerate(calls):
        if isinstance(call, ConvolutionCall):
            table.time_us.append(number)
            table.name.append(names.index(call.function))
            table.workspace_bytes.append(call.workspace_bytes)
            table.x_bytes.append(call.x_bytes)
            table.y_bytes.append(call.y_bytes)
            table.w_bytes.append(call.w_bytes)
            table.multiply_adds.append(call.multiply_adds)
            table.device.append(0)
            table.direction.append(DIRECTIONS.index(call.direction))
            table.workspace_source.append(WORKSPACE_SOURCES.index("rule"))
            table.data_type.append(0)
    return table
