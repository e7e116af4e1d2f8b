"""How far the reserved peak moves if cuDNN chooses other workspaces: the recorded history, replayed with some of them
changed.

Which convolutions matter differs from job to job: where the peak is in the optimizer none of them does, and where large
blocks are reused a single one may move it by gigabytes. Three changes are tried:

- In each of NUM_REPLAYS every convolution has, with a probability of CHANGED, another workspace: none, or copies of its
  tensors, once or twice.
- Every gradient of weights has PARTIAL_SUMS copies of them more, or less. In how many parts cuDNN sums these gradients
  is what no rule tells. It is little memory, but it decides whether a workspace fits into a block that is there.
- Where cuDNN was asked, many convolutions choose otherwise together, since one heuristic decides: those of one
  direction copy their tensors, or do without a workspace, and so do those with 1x1 filters.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from foretell.allocator import CachingAllocator, Device
from foretell.allocator.play import play_again
from foretell.protocol.history import ACTIONS
from foretell.protocol.native_log import DIRECTIONS, WORKSPACE_SOURCES
from foretell.trace import Trace

NUM_REPLAYS = 8
CHANGED = 0.1
ADDED = CHANGED / 3
"""For convolutions without a workspace: most of them never have one."""
PARTIAL_SUMS = 3
"""Measured runs on an A100 need three for some nets and none for others of much the same shapes (docs/accuracy.md)."""
_MOST_EVENTS = 60_000
"""Of a longer history only the beginning is replayed: steps repeat, and the peak is in the first ones."""
_NEAR = 40
"""Events between an allocation and the record of the convolution that it is for."""
_WEIGHTS = DIRECTIONS.index("weights")
_RULE = WORKSPACE_SOURCES.index("rule")
_ELEMENT_BYTES = {1: 8, 2: 2, 9: 2}
"""Of double, half and bfloat16, as cudnnDataType_t."""
_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = map(ACTIONS.index, ("alloc", "free_requested", "free_completed"))
_ENDLESS = 1 << 45
_NO_BLOCK = 1 << 62
"""Addresses from here on are not in any history."""


class Moves(NamedTuple):
    """The furthest that replays are below and above the peak without changes."""

    less_bytes: int
    more_bytes: int


class WorkspaceMoves(NamedTuple):
    others: Moves
    sums: Moves
    alike: Moves


_NONE = Moves(0, 0)


def workspace_moves(trace: Trace, device: int) -> WorkspaceMoves | None:
    """None: there is no history to replay."""
    rows = trace.convolutions
    if not rows.time_us:
        return WorkspaceMoves(_NONE, _NONE, _NONE)
    if not trace.memory.action or not trace.allocator.is_native:
        return None
    histories = _Histories(trace, device)
    recorded = histories.peak_with(rows.workspace_bytes.__getitem__)

    def furthest(choices: Iterable[Callable[[int], int]]) -> Moves:
        moved = [histories.peak_with(choice) - recorded for choice in choices]
        return Moves(max(0, -min(moved)), max(0, *moved))

    chosen = random.Random(0)
    sums = (_with_sums(trace, more) for more in (-PARTIAL_SUMS, PARTIAL_SUMS))
    return WorkspaceMoves(
        others=furthest(_other_choice(trace, chosen) for _ in range(NUM_REPLAYS)),
        sums=furthest(sums) if any(rows.workspace_bytes) else _NONE,
        alike=furthest(_alike(trace)) if _RULE not in rows.workspace_source else _NONE,
    )


def _alike(trace: Trace) -> Iterator[Callable[[int], int]]:
    rows = trace.convolutions
    yield lambda row: 0 if is_pointwise(trace, row) else rows.workspace_bytes[row]
    for changed in range(len(DIRECTIONS)):

        def copied(row: int, direction: int = changed) -> int:
            usual = rows.workspace_bytes[row]
            return _copies(trace, row) if rows.direction[row] == direction and not usual else usual

        def without(row: int, direction: int = changed) -> int:
            return 0 if rows.direction[row] == direction else rows.workspace_bytes[row]

        yield from (copied, without)


def is_pointwise(trace: Trace, row: int) -> bool:
    """Whether it reads no element of x twice, as with 1x1 filters. With c channels, k filters of f elements and p
    positions, a convolution takes k c f p multiplications; y and w have k p and k c f elements, and x has c f p if no
    two positions overlap, so the product of the three is the square of the multiplications."""
    rows = trace.convolutions
    size = _ELEMENT_BYTES.get(rows.data_type[row], 4)
    product = rows.x_bytes[row] * rows.y_bytes[row] * rows.w_bytes[row]
    return bool(0 < rows.multiply_adds[row] ** 2 * size**3 <= product)


def _copies(trace: Trace, row: int) -> int:
    rows = trace.convolutions
    return rows.x_bytes[row] + rows.y_bytes[row] + rows.w_bytes[row]


def _with_sums(trace: Trace, more: int) -> Callable[[int], int]:
    rows = trace.convolutions

    def choose(row: int) -> int:
        usual = rows.workspace_bytes[row]
        is_summed = usual and rows.direction[row] == _WEIGHTS
        return max(0, usual + more * rows.w_bytes[row]) if is_summed else usual

    return choose


def _other_choice(trace: Trace, chosen: random.Random) -> Callable[[int], int]:
    """The workspace of each row of the convolutions: the same for equal ones, as cuDNN chooses by shape."""
    rows, known = trace.convolutions, dict[tuple[int, ...], int]()

    def choose(row: int) -> int:
        usual, copies = rows.workspace_bytes[row], _copies(trace, row)
        shape = (rows.name[row], rows.direction[row], rows.x_bytes[row], rows.y_bytes[row], rows.w_bytes[row], usual)
        if shape not in known:
            others = (0, copies, 2 * copies) if usual else (copies, 2 * copies)
            is_changed = chosen.random() < (CHANGED if usual else ADDED)
            known[shape] = chosen.choice(others) if is_changed else usual
        return known[shape]

    return choose


class _Events(NamedTuple):
    """Columns, as the player wants them."""

    action: Sequence[int]
    address: Sequence[int]
    size: Sequence[int]
    stream: Sequence[int]
    device: Sequence[int]


class _Place(NamedTuple):
    """Of a convolution in the history: at the allocation of its workspace, or before the event that came next."""

    event: int
    row: int
    has_workspace: bool


class _Histories:
    """The history with other workspaces."""

    def __init__(self, trace: Trace, device: int) -> None:
        memory = trace.memory
        columns = zip(memory.action, memory.address, memory.size, memory.stream, memory.device, strict=True)
        self._events = list(islice(columns, _MOST_EVENTS))
        self._allocator = trace.allocator
        self._device = device
        self._places = self._find_places(trace)
        self._frees_of = self._find_frees()
        self._peaks: dict[tuple[int, ...], int] = {}
        """By the workspaces: many choices are alike."""

    def _find_places(self, trace: Trace) -> list[_Place]:
        """In the order of the events."""
        events, rows = trace.memory, trace.convolutions
        with_workspace: dict[int, _Place] = {}
        without: list[_Place] = []
        for row, (time_us, size) in enumerate(zip(rows.time_us, rows.workspace_bytes, strict=True)):
            at = bisect_right(events.time_us, time_us)
            # The record is written after the allocation; a clock may put them the other way round.
            near = [*range(at - 1, at - _NEAR, -1), *range(at, at + _NEAR)] if size else []
            found = (n for n in near if 0 <= n < len(self._events) and n not in with_workspace)
            event = next((n for n in found if events.action[n] == _ALLOC and events.size[n] == size), None)
            if event is not None:
                with_workspace[event] = _Place(event, row, True)
            elif not size and at < len(self._events):
                without.append(_Place(at, row, False))
        return sorted([*without, *with_workspace.values()], key=lambda place: (place.event, place.has_workspace))

    def _find_frees(self) -> dict[int, list[int]]:
        """Of each allocation of a workspace, the events that freed it."""
        found: dict[int, list[int]] = {place.event: [] for place in self._places if place.has_workspace}
        taken_by: dict[int, int] = {}
        """The last allocation at an address."""
        for number, (action, address, *_) in enumerate(self._events):
            if action == _ALLOC:
                taken_by[address] = number
            elif action in (_FREE_REQUESTED, _FREE_COMPLETED) and taken_by.get(address) in found:
                found[taken_by[address]].append(number)
        return found

    def peak_with(self, size_of: Callable[[int], int]) -> int:
        """The reserved peak if these were the workspaces, on a card without limits."""
        sizes = tuple(size_of(place.row) for place in self._places)
        if sizes not in self._peaks:
            history = _Events(*zip(*self._with(sizes), strict=True))
            allocator = CachingAllocator(Device(_ENDLESS), self._allocator)
            self._peaks[sizes] = play_again(history, allocator, device=self._device).peak_reserved_bytes
        return self._peaks[sizes]

    def _with(self, sizes: Sequence[int]) -> Iterator[tuple[int, int, int, int, int]]:
        """The events with these workspaces instead of those of the places."""
        changed, added = dict[int, int](), dict[int, list[int]]()
        for place, size in zip(self._places, sizes, strict=True):
            if place.has_workspace:
                changed[place.event] = size
                changed |= dict.fromkeys(self._frees_of[place.event], size)
            elif size:
                added.setdefault(place.event, []).append(size)
        start, new = 0, _NO_BLOCK
        for number in sorted({*changed, *added}):
            yield from self._events[start:number]
            action, address, size, stream, device = self._events[number]
            for other in added.get(number, ()):
                new += 1
                for what in (_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED):
                    yield what, new, other, stream, device
            if changed.get(number, size):
                yield action, address, changed.get(number, size), stream, device
            start = number + 1
        yield from self._events[start:]
