"""Plays the blocks of a job on PyTorch's allocator in Python, and writes down what a run on that card would have left:
a `Trace`, from which every report is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from foretell.allocator import CachingAllocator, Device, OutOfMemoryError
from foretell.allocator.blocks import Block as AllocatedBlock
from foretell.cpu.analysis import Block, Job
from foretell.cpu.libraries import LibraryCall
from foretell.overhead import library_bytes, loaded_libraries
from foretell.records import Gpu, OutOfMemory
from foretell.trace import (
    ACTIONS,
    AllocatorSettings,
    DeviceMemory,
    DriverEvents,
    KernelLaunches,
    LibraryCalls,
    MemoryEvents,
    OomMark,
    ScriptException,
    StepMark,
    Trace,
)
from foretell.units import format_bytes

_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED, _SEGMENT_ALLOC, _SEGMENT_FREE = (
    ACTIONS.index(action) for action in ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")
)


def peaks(blocks: Iterable[Block]) -> tuple[int, int]:
    """Allocated and reserved, on a card without end."""
    allocator = CachingAllocator()
    held: dict[int, AllocatedBlock] = {}
    for number, block, is_birth in _in_order(tuple(blocks)):
        if is_birth:
            held[number] = allocator.malloc(block.num_bytes)
        else:
            allocator.free(held.pop(number))
    return allocator.peak_allocated_bytes, allocator.peak_reserved_bytes


def simulate(
    job: Job,
    gpu: Gpu,
    *,
    calls: tuple[LibraryCall, ...] = (),
    context_bytes: int | None = None,
    command: tuple[str, ...] = (),
    caveats: tuple[str, ...] = (),
    seconds: dict[str, float] | None = None,
    torch_version: str | None = None,
) -> Trace:
    context = gpu.context_bytes if context_bytes is None else context_bytes
    libraries = library_bytes(gpu)
    names = tuple(dict.fromkeys(call.function for call in calls))
    _, loaded = loaded_libraries(libraries, names)
    played = _play(job, Device(gpu.total_bytes - context - loaded, total_bytes=gpu.total_bytes))
    return Trace(
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
        frames=tuple(("<operator>", 0, operator.name) for operator in job.operators),
        stacks=tuple(_stacks(job)),
        memory=played.memory,
        driver=DriverEvents(),
        kernels=KernelLaunches(),
        library=_library_calls(calls, names),
        engine="cpu",
    )


def _stacks(job: Job) -> Iterator[tuple[int, ...]]:
    """Of each operator: those around it, and for the backward pass the forward operator that made the node, with the
    module it is in where Python's functions were recorded."""
    makers = {node.begin: number for number, node in job.nodes.items()}
    for number in range(len(job.operators)):
        stack = tuple(job.outer(number))
        maker = next((makers[begin] for begin in (job.operators[at].begin for at in stack) if begin in makers), None)
        yield stack if maker is None else (*stack, *job.outer(maker))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    memory: MemoryEvents
    steps: tuple[StepMark, ...]
    final: DeviceMemory
    oom: OomMark | None


class _Recorder(Device):
    """Writes down which segments the allocator takes and gives back."""

    def __init__(self, device: Device, memory: MemoryEvents) -> None:
        super().__init__(device.capacity_bytes, total_bytes=device.total_bytes)
        self._memory = memory
        self._sizes: dict[int, int] = {}
        self.stack = -1

    def malloc(self, size: int) -> int | None:
        address = super().malloc(size)
        if address is not None:
            self._sizes[address] = size
            self.write(_SEGMENT_ALLOC, address, size)
        return address

    def free(self, address: int) -> None:
        super().free(address)
        self.write(_SEGMENT_FREE, address, self._sizes.pop(address))

    def write(self, action: int, address: int, size: int) -> None:
        memory = self._memory
        memory.time_us.append(len(memory.time_us))  # a count: ticks have fractions, and the order is all that matters
        memory.action.append(action)
        memory.address.append(address)
        memory.size.append(size)
        memory.stream.append(0)
        memory.device.append(0)
        memory.stack.append(self.stack)


def _play(job: Job, device: Device) -> _Played:
    memory = MemoryEvents()
    recorder = _Recorder(device, memory)
    allocator = CachingAllocator(recorder)
    held: dict[int, AllocatedBlock] = {}
    steps: list[StepMark] = []
    oom: OomMark | None = None
    ends = job.step_ends
    for number, block, is_birth in _in_order(job.blocks):
        tick = block.born if is_birth else block.died
        while len(steps) < len(ends) and ends[len(steps)] < tick:
            steps.append(_mark(len(steps), memory, allocator))
        recorder.stack = -1 if block.operator is None else block.operator
        if not is_birth:
            if number not in held:
                continue
            allocated = held.pop(number)
            recorder.write(_FREE_REQUESTED, allocated.address, block.num_bytes)
            recorder.write(_FREE_COMPLETED, allocated.address, block.num_bytes)
            allocator.free(allocated)
            continue
        try:
            held[number] = allocator.malloc(block.num_bytes)
        except OutOfMemoryError:
            if block.is_optional:
                continue
            oom = OomMark(time_us=len(memory.time_us), oom=_oom(job, block, allocator, device))
            break
        recorder.write(_ALLOC, held[number].address, block.num_bytes)
    if oom is None:
        steps += [_mark(index, memory, allocator) for index in range(len(steps), len(ends))]
    return _Played(memory=memory, steps=tuple(steps), final=_counters(allocator), oom=oom)


def _in_order(blocks: tuple[Block, ...]) -> Iterator[tuple[int, Block, bool]]:
    """Births and deaths. What dies at a tick makes room for what is born at it."""
    points = [(block.born, 1, number) for number, block in enumerate(blocks)]
    points += [(block.died, 0, -number) for number, block in enumerate(blocks) if block.died != inf]
    points.sort()
    for _, kind, signed in points:
        yield abs(signed), blocks[abs(signed)], kind == 1


def _mark(index: int, memory: MemoryEvents, allocator: CachingAllocator) -> StepMark:
    return StepMark(index=index, time_us=len(memory.time_us), devices=(_counters(allocator),))


def _counters(allocator: CachingAllocator) -> DeviceMemory:
    return DeviceMemory(
        device=0,
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
    )


def _oom(job: Job, block: Block, allocator: CachingAllocator, device: Device) -> OutOfMemory:
    free = device.capacity_bytes - allocator.reserved_bytes
    where = job.operators[block.operator].name if block.operator is not None else None
    return OutOfMemory(
        step=job.step_at(block.born),
        phase=job.phase_of(block),
        requested_bytes=block.num_bytes,
        message=f"CUDA out of memory. Tried to allocate {format_bytes(block.num_bytes)}. GPU 0 has a total capacity of "
        f"{format_bytes(device.total_bytes)} of which {format_bytes(free)} is free.",
        where=where,
    )


def _exception(oom: OutOfMemory) -> ScriptException:
    return ScriptException(type="torch.OutOfMemoryError", message=oom.message, where=oom.where, is_oom=True)


def _library_calls(calls: tuple[LibraryCall, ...], names: tuple[str, ...]) -> LibraryCalls:
    table = LibraryCalls()
    for number, call in enumerate(calls):
        table.time_us.append(number)
        table.name.append(names.index(call.function))
        table.workspace_bytes.append(call.workspace_bytes)
        for column, value in zip(
            (table.argument_1, table.argument_2, table.argument_3, table.argument_4, table.argument_5),
            (0, call.x_bytes, call.y_bytes, call.w_bytes, 0),
            strict=True,
        ):
            column.append(value)
    return table
