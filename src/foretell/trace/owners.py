"""Places the marks and labels of a capture folder (`inside/watch/owners.py`) in the memory history.

Their position is an allocation count, so it is exact. A workspace passed to a library is identified by time, address
and size instead: the virtual GPU, which sees it, does not see PyTorch's allocator.
"""

from __future__ import annotations

import marshal
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from foretell.protocol.history import ACTIONS
from foretell.protocol.marks import LABELLED
from foretell.records import CATEGORIES
from foretell.trace.history import JoinedHistory
from foretell.trace.journal import DAMAGED
from foretell.trace.origins import Names
from foretell.trace.records import PHASES, Labels, MemoryEvents, Spans

_LABELLED = tuple(CATEGORIES.index(name) for name in LABELLED)
_WORKSPACE = CATEGORIES.index("workspace")
_ALLOC = ACTIONS.index("alloc")
_CLOCKS_DIFFER_US = 20
_LABEL_COLUMNS = len(fields(Labels))


@dataclass(slots=True)
class Owners:
    labels: Labels = field(default_factory=Labels)
    spans: Spans = field(default_factory=Spans)


def read_owners(
    directory: Path, pid: int | None, history: JoinedHistory, workspaces: Sequence[tuple[int, int, int, int]]
) -> Owners:
    """Read labels and spans; also set node and module as origins in backward passes, which have no Python frames."""
    places = _Places(history)
    nodes: dict[int, list[tuple[int, str | None, str | None]]] = defaultdict(list)
    labels = [array("q", column) for column in zip(*_workspace_labels(history.events, places, workspaces), strict=True)]
    labels = labels or [array("q") for _ in range(_LABEL_COLUMNS)]
    spans: list[tuple[int, ...]] = []
    windows = sorted(directory.glob(f"owners-{pid}-*.marshal"), key=lambda path: int(path.stem.split("-")[2]))
    for path in windows:
        try:
            window = _Window(marshal.loads(path.read_bytes()), places, history.names)
        except DAMAGED:
            break  # the process died while writing
        spans += window.spans
        for number, node in window.nodes:
            nodes[number].append(node)
        for column, added in zip(labels, window.labels, strict=False):
            column.extend(added)
    owners = Owners()
    _fill(owners.labels, labels)
    _fill(owners.spans, [array("q", column) for column in zip(*spans, strict=True)])
    backward = _BackwardOrigins(history)
    for device, marks in nodes.items():
        backward.set(places.allocations.get(device, ()), marks)
    return owners


class _Window:
    """One file. Its constructor fails if it is damaged."""

    def __init__(self, window: dict[str, Any], places: _Places, known: Names) -> None:
        self.spans: list[tuple[int, ...]] = []
        self.nodes: list[tuple[int, tuple[int, str | None, str | None]]] = []
        """Device; count, node and module."""
        self.labels: list[array[int]] = []
        names = [*window["names"], None]  # the last is for index -1
        numbers = [known.number(name) for name in names]
        for device, count, phase, step, first, second in window["marks"]:
            if not 0 <= step < 1 << 31:
                raise ValueError(f"a mark of step {step}")
            if phase < 0:
                self.nodes.append((device, (count, names[first], names[second])))
                continue
            self.spans.append((places.first_after(device, count), _phase(names[phase]), step, numbers[first]))
            self.nodes.append((device, (count, None, None)))
        if window["labels"]:
            device, count, address, category, name = zip(*window["labels"], strict=True)
            if not (min(device) >= 0 and max(device) < 1 << 16 and min(address) >= 0):
                raise ValueError("labels of no device")
            columns = (
                places.after_each(device, count), device, address,
                map(_LABELLED.__getitem__, category), map(numbers.__getitem__, name),
            )  # fmt: skip
            self.labels = [array("q", column) for column in columns]


def _phase(name: str) -> int:
    phases: tuple[str, ...] = PHASES
    return phases.index(name if name in phases else "other")


class _Places:
    """Maps the number of allocations on a device to the number of a memory event. A repetition that was left out maps
    to the events it repeats."""

    def __init__(self, history: JoinedHistory) -> None:
        events = history.events
        self._num_events = len(events.action)
        rows = [n for n, action in enumerate(events.action) if action == _ALLOC]
        self.allocations: dict[int, list[int]] = {}
        for device in set(events.device):
            own = [n for n in rows if events.device[n] == device]
            self.allocations[device] = _with_repetitions(own, history.repetitions[device])

    def after(self, device: int, count: int) -> int:
        """The event right after `count` allocations; blocks freed later are still held there."""
        allocations = self.allocations.get(device)
        if count <= 0 or not allocations:
            return 0
        return allocations[min(count, len(allocations)) - 1] + 1

    def after_each(self, devices: Sequence[int], counts: Sequence[int]) -> list[int]:
        """`after` for many; most share a few positions."""
        known = {key: self.after(*key) for key in set(zip(devices, counts, strict=True))}
        return [known[key] for key in zip(devices, counts, strict=True)]

    def first_after(self, device: int, count: int) -> int:
        """The first allocation after `count` others."""
        allocations = self.allocations.get(device, [])
        return allocations[count] if 0 <= count < len(allocations) else self._num_events


def _with_repetitions(rows: list[int], repetitions: Sequence[tuple[int, int]]) -> list[int]:
    whole: list[int] = []
    begin = 0
    for after, number in repetitions:
        whole += rows[begin:after]
        whole += rows[after - number : after]
        begin = after
    return whole + rows[begin:]


def _fill(table: Labels | Spans, columns: Sequence[array[int]]) -> None:
    """Fill the table, sorted by event (the first column); the sort is stable."""
    if not columns:
        return
    order = sorted(range(len(columns[0])), key=columns[0].__getitem__)
    for name, values in zip(fields(table), columns, strict=True):
        target: array[int] = getattr(table, name.name)
        target.extend(array(target.typecode, map(values.__getitem__, order)))


class _BackwardOrigins:
    """Sets the running node as the operator of an allocation, and the module that created the node as its module."""

    def __init__(self, history: JoinedHistory) -> None:
        self._history = history
        self._numbers: dict[tuple[int, int, str, str | None], int] = {}

    def set(self, allocations: Sequence[int], marks: Sequence[tuple[int, str | None, str | None]]) -> None:
        """For one device: the numbers of its allocations, and count, node and module of each mark."""
        stacks, origins = self._history.events.stack, self._history.events.origin
        numbers = self._numbers
        for (count, name, module), (until, _, _) in pairwise([*marks, (len(allocations), None, None)]):
            if name is not None:
                for event in allocations[count:until]:
                    key = (stacks[event], origins[event], name, module)
                    number = numbers.get(key)
                    if number is None:
                        number = numbers[key] = self._number(*key)
                    origins[event] = number

    def _number(self, stack: int, origin: int, name: str, module: str | None) -> int:
        known = self._history.origins.at(origin)
        # A module's frame on the stack means that it is being recomputed.
        is_called = stack >= 0 and self._history.calls_a_module[stack]
        # Compiled code knows the module inside the one that made the node.
        is_deeper = module is not None and known.module is not None and known.module.startswith(f"{module}.")
        if is_called or module is None or is_deeper:
            module = known.module
        return self._history.origins.number(replace(known, operator=name, module=module))


def _workspace_labels(
    events: MemoryEvents, places: _Places, workspaces: Sequence[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int, int]]:
    """The last allocation of that size at that address before the call, within the difference between the clocks."""
    found: dict[tuple[int, int], list[int]] = {(address, size): [] for _, address, size, _ in workspaces}
    addresses = {address for address, _ in found}
    for numbers in places.allocations.values() if workspaces else ():
        for number in numbers:
            if events.address[number] in addresses:
                key = events.address[number], events.size[number]
                if key in found:
                    found[key].append(number)
    for numbers in found.values():
        numbers.sort()  # of several devices
    labels = set()
    for time_us, address, size, device in workspaces:
        numbers = found[address, size]
        if numbers:
            at = bisect_right(numbers, time_us + _CLOCKS_DIFFER_US, key=lambda number: events.time_us[number])
            if at:
                labels.add((numbers[at - 1] + 1, device, address, _WORKSPACE, -1))
    return sorted(labels)
