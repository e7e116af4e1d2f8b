"""Records the owners of memory, in windows `owners-<pid>-<n>.marshal`: marks and labels for the memory history.

A mark says what begins at a position in the history: a phase, or one node of a backward pass. A label names the tensor
at an address (a parameter, its gradient, its state in the optimizer). Positions are PyTorch's allocation counts, not
times: its clock and Python's differ by microseconds, and a lot happens in one.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Sequence
from typing import Any

from ...protocol.marks import LABELLED, NOTHING
from ..capture import EARLY_STEPS, Capture
from ..where import where_allocated

MAX_ROWS = 2_000_000
ROWS_PER_WINDOW = 50_000


class Owners:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._torch: Any = None
        self._names: dict[str, int] = {}
        self._marks: list[tuple[int, int, int, int, int, int]] = []
        self._labels: list[tuple[int, int, int, int, int]] = []
        self._before_reset: dict[int, int] = {}
        self._num_windows = 0
        self._num_rows = 0
        self._pid = 0

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised."""
        self._torch = torch
        self._pid = os.getpid()
        self._statistics = torch._C._cuda_memoryStats
        self._device = torch._C._cuda_getDevice
        self._count_across_resets(torch)
        self._capture.on_phase.append(self._mark_phase)
        self._capture.after_step.append(self._flush_when_large)
        self._capture.before_end.append(self.flush)

    @property
    def is_on(self) -> bool:
        return self._torch is not None and self._num_rows < MAX_ROWS and os.getpid() == self._pid

    def mark_node(self, name: str, module: str | None) -> None:
        """Mark that a node of the backward pass runs next."""
        if self.is_on:
            numbers = self._number_of(name), self._number_of(module)
            self._marks.append((*self._place(), NOTHING, self._capture.num_steps, *numbers))

    def label(self, labels: Sequence[tuple[str, Any, str | None]]) -> None:
        """Record tensors that are held now, as (category, tensor, name)."""
        if not self.is_on:
            return
        place: tuple[int, int] | None = None
        for category, tensor, name in labels:
            if not tensor.is_cuda:
                continue
            address = _address(tensor)
            if address:
                place = place or self._place()
                code = LABELLED.index(category)
                self._labels.append((tensor.get_device(), place[1], address, code, self._number_of(name)))

    def flush(self) -> None:
        if not (self._marks or self._labels) or os.getpid() != self._pid:
            return
        path = os.path.join(self._capture.options.directory, f"owners-{self._pid}-{self._num_windows}.marshal")
        self._num_windows += 1
        self._num_rows += len(self._marks) + len(self._labels)
        content = {"names": list(self._names), "marks": self._marks, "labels": self._labels}
        self._marks, self._labels, self._names = [], [], {}
        try:
            with open(path, "wb") as file:
                marshal.dump(content, file, 2)
        except OSError as error:
            self._num_rows = MAX_ROWS
            self._capture.caveat(f"cannot write the attribution data: {error}")

    def _mark_phase(self, phase: str) -> None:
        if self.is_on:
            where = where_allocated() if phase == "backward" else None
            names = self._number_of(phase), self._capture.num_steps, self._number_of(where), NOTHING
            self._marks.append((*self._place(), *names))

    def _number_of(self, name: str | None) -> int:
        return NOTHING if name is None else self._names.setdefault(name, len(self._names))

    def _place(self) -> tuple[int, int]:
        device = self._device()
        counted = self._statistics(device)["allocation"]["all"]["allocated"]
        return device, self._before_reset.get(device, 0) + counted

    def _flush_when_large(self) -> None:
        if self._capture.num_steps <= EARLY_STEPS or len(self._marks) + len(self._labels) > ROWS_PER_WINDOW:
            self.flush()

    def _count_across_resets(self, torch: Any) -> None:
        def remembering(reset: Any) -> Any:
            def reset_and_remember(device: int) -> Any:
                before = self._statistics(device)["allocation"]["all"]["allocated"]
                result = reset(device)
                after = self._statistics(device)["allocation"]["all"]["allocated"]
                self._before_reset[device] = self._before_reset.get(device, 0) + before - after
                return result

            return reset_and_remember

        self._capture.patches.wrap(torch._C, "_cuda_resetAccumulatedMemoryStats", remembering)


def _address(tensor: Any) -> int:
    """0 if a tensor has no address (fake, functional, sparse, or of a class that refuses, as the parameters of a lazy
    module before its first call). For a sharded one (DTensor): its local shard."""
    try:
        return int(getattr(tensor, "_local_tensor", tensor).data_ptr())
    except Exception:
        return 0
