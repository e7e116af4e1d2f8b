"""Stand-ins for unknown values that a script reads, and a journal of where it reads them.

A float is 1.0 and falls a little with each step of the optimizer, as a loss does: early stopping does not set in. A
softmax is one over the number of classes. An integer is 0, or 1 if something is divided by it. Where such a number
would end a loop, another one is found (comparisons.py). A condition gets the answer that goes on (branches.py), or else
False; a mask of several dimensions is true.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from ..capture import Capture
from ..where import OWN_FOLDERS, in_short, where_now
from .branches import branch_at
from .comparisons import number_that_ends, number_that_goes_on
from .loops import Waiting
from .operators import INTEGERS, torch
from .tensors import has_memory, storage_address
from .uses import Use, use_of

_MOST_EXPECTED = 1_000
MAX_STAND_IN = 1 << 14
"""Elements; larger tensors read as zeros."""
_HALVED_AFTER = 64
"""Steps of the optimizer after which a loss is half of what it was."""
_LONG = 1 << 30
_OTHER_NUMBERS = (0, 1, 1 << 20, -1)
"""Shown to a loop that has not ended with the usual one."""


class UnknownReads:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._waiting = Waiting(capture)
        self._reads: dict[tuple[str, str], list[int]] = {}
        self._caveats: set[str] = set()
        self._expected: dict[tuple[int, Any], float] = {}
        """By address and shape."""

    def expect(self, tensor: Any, number: float) -> None:
        """What a read of this tensor finds, while nothing else of its shape is there: probabilities add up to 1."""
        if len(self._expected) >= _MOST_EXPECTED:
            self._expected.clear()
        self._expected[storage_address(tensor), tensor.shape] = number

    def read(self, func: Any, source: Any) -> float:
        """Note the read; returns the number to find there."""
        frame = _frame_that_reads()
        use = use_of(frame)
        if use.is_slice:
            return self.assume_prefix(func, source, None)
        self.note(func, source, f"decides {use.decides}" if use.decides else "")
        number = self._number(source, use, frame)
        num_tries = self._waiting.is_time_for_another_answer(use) if use.decides == "a branch" else 0
        if not num_tries:
            return number
        self.note(func, source, f"decides a loop, {self._waiting.why_another}")
        if source.dtype is torch.bool or func is torch.Tensor.__bool__:
            return 1 - number
        ending = number_that_ends(use)
        return _within(source.dtype, _OTHER_NUMBERS[num_tries % len(_OTHER_NUMBERS)] if ending is None else ending)

    def _number(self, source: Any, use: Use, frame: FrameType) -> float:
        answer = _answer(use)
        if answer is not None:
            return int(answer)
        if source.dtype is torch.bool:
            if source.dim() > 1 and source.numel() > 1:  # which tokens of each text count: all
                return int(self._capture.options.assume != "low")
            # torch.distributions validates its arguments in a separate function, and raises elsewhere.
            return int(f"{os.sep}distributions{os.sep}" in frame.f_code.co_filename)
        is_integer = source.dtype in INTEGERS
        if is_integer:
            return _within(source.dtype, number_that_goes_on(use, int(use.divides)))
        loss = _HALVED_AFTER / (_HALVED_AFTER + self._capture.num_steps)
        has_address = self._expected and has_memory(source)
        expected = self._expected.get((storage_address(source), source.shape)) if has_address else None
        return number_that_goes_on(use, loss if expected is None else expected)

    def note(self, func: Any, source: Any, what: str = "") -> None:
        name = getattr(func, "__name__", str(func))
        key = (in_short(where_now()) or "", f"{name}: {what}" if what else name)
        counts = self._reads.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += source.numel() * source.element_size()

    def assume_size(self, func: Any, source: Any, most: int) -> int:
        assume = self._capture.options.assume
        count = {"low": 0, "typical": (most + 1) // 2, "high": most}[assume]
        self.note(func, source, f"decides a size, --assume {assume}: {count} of {most}")
        return count

    def assume_prefix(self, func: Any, source: Any, most: int | None) -> int:
        """How long a slice is whose end is unknown: most lengths are close to the longest. `most`: None if that is not
        known, either; a slice may be longer than what it is taken of."""
        assume = self._capture.options.assume
        count = _LONG if most is None else most
        if assume == "low":
            count = min(1, count)
        which = "all of a slice" if count == _LONG else f"{count} of {most or 'a slice'}"
        self.note(func, source, f"decides a size, --assume {assume}: {which}")
        return count

    def caveat_once(self, text: str) -> None:
        if text not in self._caveats:
            self._caveats.add(text)
            self._capture.caveat(text)

    def journal(self) -> None:
        for (where, what), (count, num_bytes) in self._reads.items():
            self._capture.journal.write("unknown_read", where=where or None, what=what, count=count, bytes=num_bytes)
        self._reads.clear()


def _within(dtype: Any, number: float) -> float:
    """A number that this type can hold."""
    if dtype not in INTEGERS or dtype is torch.bool:
        return number
    limits = torch.iinfo(dtype)
    return float(min(max(number, limits.min), limits.max))


def _frame_that_reads() -> FrameType:
    """Not one of ours, nor of the script's modes."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(OWN_FOLDERS) or frame.f_code.co_name == "__torch_function__"
    ):
        frame = frame.f_back
    return frame


def _answer(use: Use) -> bool | None:
    """The truth value that goes on, if the value itself is asked for."""
    if use.frame is not None and use.is_negated is not None:
        branch = branch_at(use.frame.f_code, use.offset)
        if branch is not None and branch.answer is not None:
            return branch.answer != use.is_negated
    return None
