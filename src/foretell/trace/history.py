"""Joins the windows of PyTorch's memory history (`history-<pid>-<n>.marshal`) that a process has written."""

from __future__ import annotations

import marshal
from array import array
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretell.protocol.history import ACTIONS, COLUMNS, ORIGIN
from foretell.protocol.marks import MODULE_FRAME, NOTHING
from foretell.trace.journal import DAMAGED
from foretell.trace.origins import Names, OriginTable
from foretell.trace.records import PHASES, MemoryEvents, Origin

_ALLOC = ACTIONS.index("alloc")
_CALLS_A_MODULE = "_call_impl"

Frame = tuple[str, int, str]
"""File, line, function."""


class JoinedHistory:
    """Of one process."""

    def __init__(self) -> None:
        self.events = MemoryEvents()
        self.names = Names()
        self.origins = OriginTable(self.names)
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.calls_a_module: list[bool] = []
        """For each stack."""
        self.num_allocations: dict[int, int] = defaultdict(int)
        """Of each device."""
        self.repetitions: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Of each device: after how many allocations, and how many of the last ones were repeated."""

    def stack(self, frames: Sequence[Frame]) -> int:
        numbers = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in frames)
        if numbers not in self.stacks:
            self.calls_a_module.append(any(function == _CALLS_A_MODULE for _, _, function in frames))
        return self.stacks.setdefault(numbers, len(self.stacks))

    def add_repetitions(self, device: int, actions: array[int], repeated: Sequence[tuple[int, int]]) -> None:
        """Repetitions left out of a window with these actions."""
        before = self.num_allocations[device]
        self.repetitions[device] += [(before + after, number) for after, number in repeated]
        self.num_allocations[device] += actions.count(_ALLOC)


def read_history(directory: Path, pid: int | None) -> JoinedHistory:
    """Join the windows of one process; each has its own numbers for stacks, frames and origins."""
    history = JoinedHistory()
    windows = sorted(directory.glob(f"history-{pid}-*.marshal"), key=lambda path: int(path.stem.split("-")[2]))
    for path in windows:
        try:
            _add_window(history, marshal.loads(path.read_bytes()))
        except DAMAGED:
            break  # the process died while writing; later windows would be inconsistent
    return history


def _add_window(history: JoinedHistory, window: dict[str, Any]) -> None:
    """All of a window, or nothing if it is damaged."""
    origins = history.origins
    columns = {name: array(letter, window["columns"][name]) for name, letter in COLUMNS.items()}
    num_events = len(columns["action"])
    if {len(column) for column in columns.values()} != {num_events}:
        raise ValueError("columns of different lengths")
    if max(columns["action"], default=0) >= len(ACTIONS):
        raise ValueError("an unknown action")
    repeated = [(int(after), int(number)) for after, number in window["repeated"]]
    frames = [(str(file), int(line), str(function)) for file, line, function in window["frames"]]
    told = [_without_modules([frames[number] for number in stack]) for stack in window["stacks"]]
    # The last element of each is for index -1.
    stacks = [*(history.stack(python) for python, _ in told), NOTHING]
    modules = [*(origins.number(Origin(module=module)) for _, module in told), NOTHING]
    own = [*(origins.number(_origin(row)) for row in window["origins"]), NOTHING]
    by_number, numbers = (own, columns["origin"]) if window["origins"] else (modules, columns["stack"])
    columns["origin"] = array("i", map(by_number.__getitem__, numbers))
    columns["stack"] = array("i", map(stacks.__getitem__, columns["stack"]))
    columns["device"] = array("H", [int(window["device"])]) * num_events
    for name, column in columns.items():
        getattr(history.events, name).extend(column)
    history.add_repetitions(int(window["device"]), columns["action"], repeated)


def _without_modules(stack: list[Frame]) -> tuple[list[Frame], str | None]:
    """The Python frames, and the innermost module whose call is on the stack."""
    module = next((function for file, _, function in stack if file == MODULE_FRAME), None)
    return [frame for frame in stack if frame[0] != MODULE_FRAME], module


def _origin(row: list[Any]) -> Origin:
    told = dict(zip(ORIGIN, row, strict=True))
    phase = told.pop("phase")
    return Origin(**told, phase=None if phase is None else phase if phase in PHASES else "other")
