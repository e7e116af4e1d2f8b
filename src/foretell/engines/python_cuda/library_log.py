"""Logs the calls of NVIDIA's libraries the job would make, in the format of the virtual GPU's own log.

A library takes card memory when its first handle is created; PyTorch cannot use that memory any more.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from typing import Any

from ...protocol.native_log import LIBRARY_CALL, LIBRARY_LOADED, Kind
from ...rules.capacity import Capacity

_TAKES = {
    "cublasCreate": "cublas_library",
    "cudnnCreate": "cudnn_library",
    "cudnnBatchNormalization": "batch_norm_library",
    "ncclCommInitRank": "nccl_library",
}


class Libraries:
    def __init__(self, capture: Any, card: dict[str, Any], device: Any, capacity: Capacity) -> None:
        self._capture = capture
        self._card = card
        self._device = device
        self._capacity = capacity
        self._seen: set[tuple[Any, ...]] = set()
        self._names: dict[str, int] = {}
        self._waiting: list[bytes] = []
        """Records to write."""
        _silence_virtual_gpu()

    def load(self, name: str) -> None:
        """Log a call that loads a library; the first one takes card memory."""
        code_bytes = int(self._card.get(_TAKES[name], 0))
        if self.call(name, LIBRARY_LOADED, code_bytes=code_bytes):
            loaded = self._capacity.library_bytes + code_bytes
            self._capacity = replace(self._capacity, library_bytes=loaded)
            self._device.capacity_bytes = self._capacity.reservable_bytes

    def call(self, name: str, kind: Kind = LIBRARY_CALL, **values: int) -> bool:
        """Log a call, once for each distinct one, but each for the time of a step; true if it is new."""
        key = (name, kind, *values.items())
        is_new = key not in self._seen
        self._seen.add(key)
        if is_new or self._capture.options.time:
            number = self._names.setdefault(name, len(self._names))
            self._waiting.append(kind.pack(time.time_ns() // 1000, number, **values))
        return is_new

    def write(self) -> None:
        """Write what is new: a process that is killed leaves the calls up to its last step."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        prefix = os.path.join(self._capture.options.directory, f"native-{os.getpid()}")
        with open(f"{prefix}.names", "w") as file:
            file.writelines(f"{name}\n" for name in self._names)
        with open(f"{prefix}.bin", "ab") as file:
            file.writelines(waiting)


def _silence_virtual_gpu() -> None:
    """It is preloaded if torch has CUDA, and would write to the same file through a mapping, which ends the process by
    SIGBUS once the file is shorter."""
    library = ctypes.CDLL(None)
    if hasattr(library, "foretell_log_to"):
        library.foretell_log_to(b"")
