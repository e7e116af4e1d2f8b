"""How far the reserved peak moves if cuDNN chooses other workspaces: the recorded history, replayed with some of them
changed.

Which convolutions matter differs from job to job: where the peak is in the optimizer none of them does, and where large
blocks are reused a single one may move it by gigabytes. Two changes are tried:

- In each of NUM_REPLAYS every convolution has, with a probability of CHANGED, another workspace: none, or copies of its
  tensors, once or twice.
- Every gradient of weights has PARTIAL_SUMS copies of them more, or less. In how many parts cuDNN sums these gradients
  is what no rule tells. It is little memory, but it decides whether a workspace fits into a block that is there.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from foretell.allocator import CachingAllocator, Device
from foretell.allocator.play import play_again
from foretell.protocol.history import ACTIONS
from foretell.protocol.native_log import DIRECTIONS
from foretell.trace import MemoryEvents, Trace

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
_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = map(ACTIONS.index, ("alloc", "free_requested", "free_completed"))
_ENDLESS = 1 << 45
_NO_BLOCK = 1 << 62
"""Addresses from here on are not in any history."""


def workspace_spreads(trace: Trace, device: int) -> tuple[int, int] | None:
    """The furthest that a replay is from the peak without changes: with other workspaces, and with other numbers of
    partial sums; 0 without convolutions. None: there is no history to replay."""
    rows = trace.convolutions
    if not rows.time_us:
        return 0, 0
    if not trace.memory.action or not trace.allocator.is_native:
        return None
    histories = _Histories(trace, device)
    recorded = histories.peak_with(rows.workspace_bytes.__getitem__)

    def furthest(choices: Iterable[Callable[[int], int]]) -> int:
        return max(abs(histories.peak_with(choice) - recorded) for choice in choices)

    chosen = random.Random(0)
    others = furthest(_other_choice(trace, chosen) for _ in range(NUM_REPLAYS))
    if not any(rows.workspace_bytes):
        return others, 0
    return others, furthest(_with_sums(trace, more) for more in (-PARTIAL_SUMS, PARTIAL_SUMS))


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
        usual, copies = rows.workspace_bytes[row], rows.x_bytes[row] + rows.y_bytes[row] + rows.w_bytes[row]
        shape = (rows.name[row], rows.direction[row], rows.x_bytes[row], rows.y_bytes[row], rows.w_bytes[row], usual)
        if shape not in known:
            others = (0, copies, 2 * copies) if usual else (copies, 2 * copies)
            is_changed = chosen.random() < (CHANGED if usual else ADDED)
            known[shape] = chosen.choice(others) if is_changed else usual
        return known[shape]

    return choose


class _Histories:
    """The history with other workspaces."""

    def __init__(self, trace: Trace, device: int) -> None:
        self._trace = trace
        self._device = device
        self._num_events = min(len(trace.memory.action), _MOST_EVENTS)
        self._row_of: dict[int, int] = {}
        """Of the event that allocated its workspace."""
        self._rows_before: dict[int, list[int]] = {}
        """Rows without a workspace, by the event that came next."""
        self._match()

    def _match(self) -> None:
        events, rows = self._trace.memory, self._trace.convolutions
        for row, (time_us, size) in enumerate(zip(rows.time_us, rows.workspace_bytes, strict=True)):
            at = bisect_right(events.time_us, time_us)
            # The record is written after the allocation; a clock may put them the other way round.
            near = [*range(at - 1, at - _NEAR, -1), *range(at, at + _NEAR)] if size else []
            found = (n for n in near if 0 <= n < self._num_events and n not in self._row_of)
            event = next((n for n in found if events.action[n] == _ALLOC and events.size[n] == size), None)
            if event is not None:
                self._row_of[event] = row
            elif not size:
                self._rows_before.setdefault(at, []).append(row)

    def peak_with(self, size_of: Callable[[int], int]) -> int:
        """The reserved peak if these were the workspaces, on a card without limits."""
        columns = zip(*self._events(size_of), strict=True)
        action, address, size, stream, of_device = columns
        history = replace(
            self._trace.memory, action=array("B", action), address=array("Q", address), size=array("q", size),
            stream=array("Q", stream), device=array("H", of_device),
        )  # fmt: skip
        allocator = CachingAllocator(Device(_ENDLESS), self._trace.allocator)
        return play_again(history, allocator, device=self._device).peak_reserved_bytes

    def _events(self, size_of: Callable[[int], int]) -> Iterator[tuple[int, int, int, int, int]]:
        events, without, new = self._trace.memory, set[int](), _NO_BLOCK
        for number, row in enumerate(_rows(events, self._num_events)):
            action, address, _, stream, device = row
            for convolution in self._rows_before.get(number, ()):
                size = size_of(convolution)
                if size:
                    new += 1
                    for what in (_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED):
                        yield what, new, size, stream, device
            if number in self._row_of:
                size = size_of(self._row_of[number])
                (without.discard if size else without.add)(address)
                if size:
                    yield action, address, size, stream, device
            elif action == _ALLOC:
                without.discard(address)
                yield row
            elif action not in (_FREE_REQUESTED, _FREE_COMPLETED) or address not in without:
                yield row


def _rows(events: MemoryEvents, num: int) -> Iterator[tuple[int, int, int, int, int]]:
    rows = zip(events.action, events.address, events.size, events.stream, events.device, strict=True)
    return (row for row, _ in zip(rows, range(num), strict=False))
