"""Replays the steps of a recorded run in random orders: how often would another order of batches run out of memory?

PyTorch's allocator fragments differently if long and short batches come in another order. Each order is replayed on the
allocator in Python. A step keeps its own requests, in their order; what it frees of the step before it (the gradients,
the last loss) is what the step before it has left there now. Steps that cannot be moved stay in their places: the first
ones, which create the optimizer's state; those with an evaluation; those that leave something else to the next step
than most, or memory that lives longer.
"""

from __future__ import annotations

import math
import os
import random
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context

from foretell.allocator import AllocatorSettings, CachingAllocator, Device
from foretell.allocator.blocks import Block
from foretell.allocator.caching import OutOfMemoryError
from foretell.allocator.follow import ALLOC, FREE_COMPLETED, FREE_REQUESTED, SEGMENT_FREE, ReplayError
from foretell.analysis.history import follow
from foretell.analysis.steps import step_ends
from foretell.errors import UnsupportedError
from foretell.records import Orders
from foretell.rules.capacity import Capacity
from foretell.trace import MemoryEvents, Trace
from foretell.trace.records import PHASES

FEWEST_MOVED = 3
_NEGLIGIBLE_BYTES = 4096
"""A scalar that lives for several steps, as in a list of losses, does not keep its step in place."""
_ALLOCATE, _FREE, _REQUEST_FREE, _COMPLETE_FREE, _EMPTY_CACHE = range(5)


def random_orders(
    trace: Trace,
    capacity: Capacity,
    *,
    num: int,
    seed: int = 0,
    settings: AllocatorSettings | None = None,
    num_processes: int | None = None,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> Orders:
    """Replay `num` orders. Raises `UnsupportedError` if the steps of the trace cannot be moved."""
    cut = _cut(trace)
    settings = settings or trace.allocator
    moved = [number for number, step in enumerate(cut) if not step.is_fixed]
    if len(moved) < FEWEST_MOVED:
        raise UnsupportedError(
            f"only {len(moved)} of {len(trace.steps)} steps can be replayed in another order: the others are the first "
            "ones, have an evaluation, or leave memory to later steps. Record more steps: foretell run --steps all "
            "--trace FILE"
        )
    recorded = _play(cut, range(len(cut)), CachingAllocator(Device(trace.gpu.total_bytes), trace.allocator))
    counted = max((d.peak_reserved_bytes for d in trace.final if d.device == trace.busiest_device), default=0)
    if recorded != counted:
        raise UnsupportedError(
            f"the steps of this trace cannot be replayed one by one: they lead to a reserved peak of {recorded} bytes, "
            f"but the run had {counted}."
        )
    draw = partial(_draw, cut, moved, seed, capacity, settings)
    peaks: list[int | None] = []
    for peak in _in_processes(draw, num, num_processes or os.cpu_count() or 1):
        peaks.append(peak)
        on_progress(len(peaks))
    fitting = sorted(peak for peak in peaks if peak is not None)
    num_oom = num - len(fitting)
    low, high = interval(num_oom, num)
    return Orders(
        num=num,
        num_oom=num_oom,
        oom_low=low,
        oom_high=high,
        num_steps=len(trace.steps),
        num_steps_moved=len(moved),
        least_reserved_bytes=fitting[0] if fitting else None,
        median_reserved_bytes=fitting[(len(fitting) - 1) // 2] if fitting else None,
        most_reserved_bytes=fitting[-1] if fitting else None,
        recorded_reserved_bytes=recorded,
        seed=seed,
    )


def interval(count: int, num: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a probability, of which `count` in `num` independent draws were seen."""
    tail = (1 - confidence) / 2
    low = _root(lambda p: 1 - _binomial(count - 1, num, p), tail) if count else 0.0
    high = _root(lambda p: 1 - _binomial(count, num, p), 1 - tail) if count < num else 1.0
    return low, high


def _binomial(count: int, num: int, p: float) -> float:
    """The probability of at most `count` in `num`."""
    if p in (0.0, 1.0):
        return float(p == 0.0 or count >= num)
    logs = (
        math.log(math.comb(num, k)) + k * math.log(p) + (num - k) * math.log1p(-p) for k in range(count + 1)
    )
    return sum(map(math.exp, logs))


def _root(rising: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return low


# --- cutting a history into steps -------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Life:
    """A block, from its allocation to its reuse."""

    step: int
    number: int
    """Among the blocks of its step."""
    bytes: int
    stack: int
    requested_in: int | None = None
    freed_in: int | None = None
    """The step in which it could be reused; None: never."""


_Event = tuple[int, _Life | None, int, int]
"""What happens, to which block, bytes, stream."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The events of a step, of what comes before the first one ends, or after the last."""

    does: array[int]
    block: array[int]
    """Its own blocks are numbered first, then those handed over by the step before it, then `others`."""
    size: array[int]
    stream: array[int]
    num_blocks: int
    handed: tuple[int, ...]
    """Its blocks that the next step frees."""
    others: tuple[tuple[int, int], ...]
    """Step and number of blocks of steps that stay in their places."""
    is_fixed: bool


def _cut(trace: Trace) -> list[_Step]:
    try:
        history = follow(trace, trace.busiest_device)
        ends = step_ends(trace.memory, trace.steps, history)
    except ReplayError as error:
        raise UnsupportedError(f"this trace cannot be replayed, because its history is incomplete: {error}.") from None
    bounds = list(pairwise([0, *ends, len(history.rows)]))
    parts = list(_parts(trace.memory, history.rows, bounds))
    fixed = {0, len(parts) - 1, *_with_evaluation(trace, history.rows, ends)}
    handed: list[list[_Life]] = [[] for _ in parts]
    swept: set[_Life] = set()
    for life in (life for part in parts for does, life, _, _ in part if does == _ALLOCATE and life is not None):
        later = {step for step in (life.requested_in, life.freed_in) if step not in (None, life.step)}
        if not later:
            continue
        if later == {life.step + 1}:
            handed[life.step].append(life)
        elif life.step and life.bytes <= _NEGLIGIBLE_BYTES and life.requested_in == life.freed_in:
            handed[life.step].append(life)
            swept.add(life)
        elif min(later) < len(parts) - 1:
            fixed |= {life.step, *later}
    left = [tuple((life.stack, life in swept) for life in each) for each in handed]
    usual = Counter(left[1:-1]).most_common(1)[0][0] if len(left) > 2 else ()
    fixed |= {number for number in range(1, len(parts)) if not left[number - 1] == left[number] == usual}
    return [_step(number, part, handed, swept, fixed) for number, part in enumerate(parts)]


def _parts(
    memory: MemoryEvents, rows: Sequence[int], bounds: Sequence[tuple[int, int]]
) -> Iterator[list[_Event]]:
    held: dict[int, _Life] = {}
    waiting: dict[int, _Life] = {}
    was_emptying = False
    for step, (begin, end) in enumerate(bounds):
        part: list[_Event] = []
        num_blocks = 0
        for row in rows[begin:end]:
            action, address, size, stream = (
                memory.action[row], memory.address[row], memory.size[row], memory.stream[row],
            )  # fmt: skip
            if action == ALLOC:
                life = held[address] = _Life(step, num_blocks, size, memory.stack[row])
                num_blocks += 1
                part.append((_ALLOCATE, life, size, stream))
            elif action == FREE_REQUESTED and address in held:
                life = waiting[address] = held.pop(address)
                life.requested_in = step
                part.append((_REQUEST_FREE, life, 0, 0))
            elif action == FREE_COMPLETED and address in waiting:
                life = waiting.pop(address)
                life.freed_in = step
                if part and part[-1][:2] == (_REQUEST_FREE, life):
                    part[-1] = (_FREE, life, 0, 0)
                else:
                    part.append((_COMPLETE_FREE, life, 0, 0))
            elif action == SEGMENT_FREE and not was_emptying:
                part.append((_EMPTY_CACHE, None, 0, 0))
            was_emptying = action == SEGMENT_FREE
        yield part


def _with_evaluation(trace: Trace, rows: Sequence[int], ends: Sequence[int]) -> set[int]:
    """Steps with an evaluation; none if it belongs to the steps because most have one."""
    evaluation = PHASES.index("evaluation")
    begins = [event for event, phase in zip(trace.spans.event, trace.spans.phase, strict=True) if phase == evaluation]
    last_rows = [rows[end - 1] for end in ends]
    found = {bisect_left(last_rows, event) for event in begins}
    return found if 2 * len(found) < len(ends) else set()


def _step(
    number: int, part: list[_Event], handed: list[list[_Life]], swept: set[_Life], fixed: set[int]
) -> _Step:
    num_blocks = sum(does == _ALLOCATE for does, _, _, _ in part)
    before = handed[number - 1] if number else []
    slots = {life: num_blocks + slot for slot, life in enumerate(before)}
    others: dict[_Life, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    for does, life, size, stream in part:
        if life is None or life.step == number:
            rows.append((does, 0 if life is None else life.number, size, stream))
        elif life in slots and life not in swept:
            rows.append((does, slots[life], size, stream))
        elif life.step in fixed and life not in swept:
            at = num_blocks + len(before) + others.setdefault(life, len(others))
            rows.append((does, at, size, stream))
        # Else it was swept, or it is a leak that the code after the training frees.
    rows += [(_FREE, slots[life], 0, 0) for life in before if life in swept]
    return _Step(
        does=array("b", (row[0] for row in rows)),
        block=array("q", (row[1] for row in rows)),
        size=array("q", (row[2] for row in rows)),
        stream=array("Q", (row[3] for row in rows)),
        num_blocks=num_blocks,
        handed=tuple(life.number for life in handed[number]),
        others=tuple((life.step, life.number) for life in others),
        is_fixed=number in fixed,
    )


# --- replaying --------------------------------------------------------------------------------------------------------


def _draw(
    cut: Sequence[_Step],
    moved: Sequence[int],
    seed: int,
    capacity: Capacity,
    settings: AllocatorSettings,
    number: int,
) -> int | None:
    """The reserved peak of one order; None if it runs out of memory."""
    shuffled = list(moved)
    random.Random(f"{seed} {number}").shuffle(shuffled)
    order = list(range(len(cut)))
    for place, step in zip(moved, shuffled, strict=True):
        order[place] = step
    device = Device(capacity.reservable_bytes, total_bytes=capacity.total_bytes)
    return _play(cut, order, CachingAllocator(device, settings))


def _play(cut: Sequence[_Step], order: Sequence[int], allocator: CachingAllocator) -> int | None:
    kept: dict[int, list[Block | None]] = {}
    wanted = {step for each in cut for step, _ in each.others}
    handed: list[Block | None] = []
    malloc, free = allocator.malloc, allocator.free
    for number in order:
        step = cut[number]
        blocks: list[Block | None] = [None] * step.num_blocks
        blocks += handed
        blocks += [kept[of][block] for of, block in step.others]
        for does, at, size, stream in zip(step.does, step.block, step.size, step.stream, strict=True):
            if does == _ALLOCATE:
                try:
                    blocks[at] = malloc(size, stream)
                except OutOfMemoryError:
                    return None
                continue
            if does == _EMPTY_CACHE:
                allocator.empty_cache()
                continue
            block = blocks[at]
            assert block is not None, f"step {number} frees block {at}, which it does not have"
            if does == _FREE:
                free(block)
            elif does == _REQUEST_FREE:
                allocator.request_free(block)
            else:
                allocator.complete_free(block)
        handed = [blocks[block] for block in step.handed]
        if number in wanted:
            kept[number] = blocks
    return allocator.peak_reserved_bytes


_task: Callable[[int], int | None] | None = None


def _in_processes(draw: Callable[[int], int | None], num: int, num_processes: int) -> Iterator[int | None]:
    """The results of all draws. The steps are large: forked processes have them already."""
    global _task
    if num_processes == 1 or num == 1:
        yield from map(draw, range(num))
        return
    _task = draw
    try:
        with ProcessPoolExecutor(num_processes, mp_context=get_context("fork")) as pool:
            yield from pool.map(_run_task, range(num))
    finally:
        _task = None


def _run_task(number: int) -> int | None:
    assert _task is not None
    return _task(number)
