"""Puts the marks and labels of a capture folder (`capture/inside/owners.py`) where they belong in the memory history.

Their place is a number of allocations, so it is exact. A workspace handed to a library is known by its time, address
and size instead: the virtual GPU, which sees it, does not see PyTorch's allocator.
"""

from __future__ import annotations

import marshal
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from foretell.records import CATEGORIES
from foretell.trace.records import ACTIONS, PHASES, Labels, MemoryEvents, Spans

# As the child numbers them.
_LABELLED = tuple(CATEGORIES.index(name) for name in ("parameter", "buffer", "gradient", "optimizer_state"))
_WORKSPACE = CATEGORIES.index("workspace")
_ALLOC = ACTIONS.index("alloc")
_CALLS_A_MODULE = "_call_impl"
_CLOCKS_DIFFER_US = 20


@dataclass(slots=True)
class History:
    """The windows of one process, joined."""

    events: MemoryEvents = field(default_factory=MemoryEvents)
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    stacks: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Owners:
    labels: Labels = field(default_factory=Labels)
    spans: Spans = field(default_factory=Spans)
    names: list[str] = field(default_factory=list)


def read_owners(
    directory: Path, pid: int | None, history: History, workspaces: Sequence[tuple[int, int, int, int]]
) -> Owners:
    """Gives the allocations of backward passes, which have no Python frames, the node and the module for frames."""
    places = _Places(history.events)
    names: dict[str, int] = {}
    nodes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    labels: list[tuple[int, ...]] = list(_workspace_labels(history.events, workspaces))
    spans: list[tuple[int, ...]] = []
    windows = sorted(directory.glob(f"owners-{pid}-*.marshal"), key=lambda path: int(path.stem.split("-")[2]))
    for path in windows:
        try:
            window = marshal.loads(path.read_bytes())
        except (EOFError, ValueError, TypeError):
            break  # the process died while writing
        numbers = [names.setdefault(name, len(names)) for name in window["names"]]
        numbers.append(-1)  # what -1 points to
        for device, count, phase, step, first, second in window["marks"]:
            if phase < 0:
                nodes[device].append((count, numbers[first], numbers[second]))
                continue
            spans.append((places.first_after(device, count), _phase(window["names"][phase]), step, numbers[first]))
            nodes[device].append((count, -1, -1))
        labels += [
            (places.after(device, count), device, address, _LABELLED[category], numbers[name])
            for device, count, address, category, name in window["labels"]
        ]
    owners = Owners(names=list(names))
    _fill(owners.labels, sorted(labels, key=lambda row: row[0]))
    _fill(owners.spans, sorted(spans, key=lambda row: row[0]))
    telling = _Telling(history, owners.names)
    for device, marks in nodes.items():
        telling.tell(places.allocations[device], marks)
    return owners


def _phase(name: str) -> int:
    phases: tuple[str, ...] = PHASES
    return phases.index(name if name in phases else "other")


class _Places:
    """From the number of allocations on a device to the number of a memory event."""

    def __init__(self, events: MemoryEvents) -> None:
        self._num_events = len(events.action)
        self.allocations: dict[int, array[int]] = defaultdict(lambda: array("q"))
        for number, (action, device) in enumerate(zip(events.action, events.device, strict=True)):
            if action == _ALLOC:
                self.allocations[device].append(number)

    def after(self, device: int, count: int) -> int:
        """Right after so many allocations: what was freed only later is still held there."""
        allocations = self.allocations[device]
        if count <= 0 or not allocations:
            return 0
        return allocations[min(count, len(allocations)) - 1] + 1

    def first_after(self, device: int, count: int) -> int:
        """The first allocation after so many."""
        allocations = self.allocations[device]
        return allocations[count] if 0 <= count < len(allocations) else self._num_events


def _fill(table: Any, rows: list[tuple[int, ...]]) -> None:
    for column, values in zip(table.__slots__, zip(*rows, strict=True), strict=False):
        getattr(table, column).extend(values)


class _Telling:
    """Node and module become the innermost frames of what was allocated while the node ran."""

    def __init__(self, history: History, names: list[str]) -> None:
        self._history = history
        self._names = names
        self._stacks: dict[tuple[int, int, int], int] = {}
        self._frames: dict[tuple[str, int], int] = {}

    def tell(self, allocations: Sequence[int], marks: Sequence[tuple[int, int, int]]) -> None:
        """Of one device: the numbers of its allocations, and count, node and module of each mark."""
        stack_of = self._history.events.stack
        for (count, name, module), (until, _, _) in pairwise([*marks, (len(allocations), -1, -1)]):
            if name >= 0:
                for event in allocations[count:until]:
                    stack_of[event] = self._stack(stack_of[event], name, module)

    def _stack(self, stack: int, name: int, module: int) -> int:
        key = (stack, name, module)
        if key not in self._stacks:
            stacks, frames = self._history.stacks, self._history.frames
            python = stacks[stack] if stack >= 0 else ()
            # Where a module is being called, its own frames are there: a recomputation.
            is_called = any(frames[number][2] == _CALLS_A_MODULE for number in python)
            told = [self._frame("<operator>", name)]
            if module >= 0 and not is_called:
                told.append(self._frame("<nn.Module>", module))
            stacks.append((*told, *python))
            self._stacks[key] = len(stacks) - 1
        return self._stacks[key]

    def _frame(self, file: str, name: int) -> int:
        if (file, name) not in self._frames:
            self._history.frames.append((file, 0, self._names[name]))
            self._frames[file, name] = len(self._history.frames) - 1
        return self._frames[file, name]


def _workspace_labels(
    events: MemoryEvents, workspaces: Sequence[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int, int]]:
    """The allocation of that size at that address that is the last before the call, give or take the clocks."""
    wanted = {(address, size) for _, address, size, _ in workspaces}
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = zip(events.action, events.address, events.size, strict=True)
    for number, (action, address, size) in enumerate(rows):
        if action == _ALLOC and (address, size) in wanted:
            found[address, size].append(number)
    labels = set()
    for time_us, address, size, device in workspaces:
        numbers = found.get((address, size))
        if numbers:
            at = bisect_right(numbers, time_us + _CLOCKS_DIFFER_US, key=lambda number: events.time_us[number])
            if at:
                labels.add((numbers[at - 1] + 1, device, address, _WORKSPACE, -1))
    return sorted(labels)
