"""Stand-ins for unknown values that a script reads, the same as on the virtual GPU."""

from __future__ import annotations

import sys
from typing import Any

from ...inside.values import packages
from ...inside.values.unknown import MAX_STAND_IN, UnknownReads


class Unknown:
    def __init__(self, torch: Any, capture: Any, values: Any) -> None:
        self._torch = torch
        self._capture = capture
        self._values = values
        self._reads = UnknownReads(capture)
        self.caveat_once = self._reads.caveat_once
        capture.before_end.append(self._reads.journal)
        packages.install(capture, self._reads, values.is_known)

    def item(self, tensor: Any) -> Any:
        value = self._reads.read(self._torch.Tensor.item, tensor)
        if tensor.dtype is self._torch.bool:
            return bool(value)
        return float(value) if tensor.dtype.is_floating_point else int(value)

    def read(self, source: Any, *, into: Any) -> None:
        if _is_for_a_file(self._torch.serialization.__file__):
            return
        number = self._reads.read(self._torch.Tensor.cpu, source)
        if source.numel() <= MAX_STAND_IN:
            into.fill_(number)
            if self._values.is_known_in_part(source):
                known = self._values.known_elements(source)
                into.copy_(self._values.on_host(source).masked_fill(~known, number))

    def count(self, mask: Any) -> int:
        """How many elements a mask selects."""
        if self._values.is_known(mask):
            return int(self._values.on_host(mask).count_nonzero())
        return self._reads.assume_size(self._torch.nonzero, mask, mask.numel())

    def assume(self, tensor: Any, *, most: int = 0) -> Any:
        """Stand-in for a tensor whose contents decide a size: a number of distinct values; `most`, if that is known."""
        self._reads.note(self._torch.unique, tensor)
        num = tensor.numel()
        count = most or {"low": 1, "typical": (num + 1) // 2, "high": num}[self._capture.options.assume]
        numbers = self._torch.arange(num) % max(count, 1)
        return numbers.to(tensor.dtype).reshape(tensor.shape)


def _is_for_a_file(serialization: str) -> bool:
    """torch.save reads everything, and nothing depends on it."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == serialization:
            return True
        frame = frame.f_back
    return False
