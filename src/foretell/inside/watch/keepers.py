"""Finds variables that hold more GPU memory after each step (`keeper` lines): a list of losses, a sum of them.

After each of the first steps it looks at the variables of the functions that called the optimizer, and of their module.
It reports a container that holds more tensors each time, and a tensor whose autograd graph reaches back to the one that
had its name a step before.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Mapping
from operator import length_hint
from types import FrameType
from typing import Any

from ..capture import Capture
from ..variables import variables_of
from ..where import OWN_FOLDERS, is_in_library
from .modules import contents, tensors_of

_STEPS = 8
"""Enough steps to show a leak, without slowing down a long run."""
_IN_A_ROW = 3
_LARGEST = 10_000
_MARK = "foretell_keeper"


class Keepers:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._told: set[tuple[str, str]] = set()

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised."""
        self._tensor = torch.Tensor
        self._capture.after_step.append(self._look)

    def _look(self) -> None:
        if self._capture.num_steps > _STEPS or sys.gettrace() is not None:  # a debugger writes the variables back
            return
        seen: set[int] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not is_in_library(file) and not file.startswith((*OWN_FOLDERS, "<")):
                if id(frame.f_globals) not in seen:
                    seen.add(id(frame.f_globals))
                    self._look_at(file, frame.f_globals)
                with variables_of(frame) as variables:
                    if variables is not frame.f_globals:
                        self._look_at(file, variables)
            frame = frame.f_back

    def _look_at(self, file: str, variables: Mapping[str, Any]) -> None:
        for name, value in list(variables.items()):
            if name.startswith("__"):
                continue
            what = f"a growing {type(value).__name__} of tensors"
            held = contents(value)
            if held is not None:
                count = self._num_tensors(held)
            elif isinstance(value, self._tensor) and value.grad_fn is not None:
                count = self._length_of_sum(name, value.grad_fn)
                what = "a sum that keeps the graph of each step"
            else:
                continue
            counts = self._counts.setdefault((file, name), [])
            counts.append(count)
            last = counts[-_IN_A_ROW:]
            if len(last) == _IN_A_ROW and 0 < last[0] < last[1] < last[2]:
                self._tell(file, name, what)

    def _num_tensors(self, values: Any) -> int:
        """Number of tensors on the card, also in nested lists, tuples and dicts."""
        if length_hint(values) > _LARGEST:
            return 0
        return sum(tensor.is_cuda for value in values for tensor in tensors_of(value, self._tensor))

    def _length_of_sum(self, name: str, node: Any) -> int:
        """How many steps back the sum with this name reaches."""
        marks = [before.metadata.get(_MARK, {}) for before, _ in node.next_functions if before is not None]
        length: int = 1 + max((mark.get(name, 0) for mark in marks), default=0)
        node.metadata.setdefault(_MARK, {})[name] = length
        return length

    def _tell(self, file: str, name: str, what: str) -> None:
        if (file, name) not in self._told:
            self._told.add((file, name))
            self._capture.journal.write("keeper", name=name, what=what, where=_line_that_adds(file, name) or file)


def _line_that_adds(file: str, name: str) -> str | None:
    """`losses.append(...)`, `total += ...`, `total = total + ...`, `seen[...] = ...`."""
    word = re.escape(name)
    adds = re.compile(
        rf"\b{word}\s*(\.\s*(append|extend|insert|add|update|appendleft)\s*\(|\[[^]]*\]\s*=[^=]|[+-]=|=[^=].*\b{word}\b)"
    )
    for number, line in enumerate(linecache.getlines(file), start=1):
        if adds.search(line):
            return f"{file}:{number}"
    return None
