"""Stand-ins for unknown values that a script reads, and a journal of where it reads them."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..capture import Capture
from ..where import OWN_FOLDERS, where_now
from .branches import answer_that_does_not_raise
from .operators import INTEGERS, torch

MAX_STAND_IN = 1 << 14
"""Elements; larger tensors read as zeros."""


class UnknownReads:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._reads: dict[tuple[str, str], list[int]] = {}
        self._caveats: set[str] = set()

    def note(self, func: Any, source: Any, what: str = "") -> None:
        name = getattr(func, "__name__", str(func))
        key = (where_now() or "", f"{name}: {what}" if what else name)
        counts = self._reads.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += source.numel() * source.element_size()

    def assume_size(self, func: Any, source: Any, most: int) -> int:
        assume = self._capture.options.assume
        count = {"low": 0, "typical": (most + 1) // 2, "high": most}[assume]
        self.note(func, source, f"decides a size, --assume {assume}: {count} of {most}")
        return count

    def caveat_once(self, text: str) -> None:
        if text not in self._caveats:
            self._caveats.add(text)
            self._capture.caveat(text)

    def journal(self) -> None:
        for (where, what), (count, num_bytes) in self._reads.items():
            self._capture.journal.write("unknown_read", where=where or None, what=what, count=count, bytes=num_bytes)
        self._reads.clear()


def stand_in(tensor: Any) -> int:
    if tensor.dtype not in INTEGERS:
        return 1
    if tensor.dtype is not torch.bool:
        return 0
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(OWN_FOLDERS) or frame.f_code.co_name == "__torch_function__"
    ):  # skip our own frames and the script's modes
        frame = frame.f_back
    answer = answer_that_does_not_raise(frame)
    if answer is None:
        # torch.distributions validates its arguments in a separate function, and raises elsewhere.
        answer = f"{os.sep}distributions{os.sep}" in frame.f_code.co_filename
    return int(answer)
