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
        self._calls: dict[tuple[Any, ...], int] = {}
        self._num_written = 0
        _silence_virtual_gpu()

    def load(self, name: str) -> None:
        """Log a call that loads a library; the first one takes card memory."""
        code_bytes = int(self._card.get(_TAKES[name], 0))
        if self.call(name, LIBRARY_LOADED, code_bytes=code_bytes):
            loaded = self._capacity.library_bytes + code_bytes
            self._capacity = replace(self._capacity, library_bytes=loaded)
            self._device.capacity_bytes = self._capacity.reservable_bytes

    def call(self, name: str, kind: Kind = LIBRARY_CALL, **values: int) -> bool:
        """Log a call, once for each distinct one; true if it is new."""
        key = (name, kind, *values.items())
        if key in self._calls:
            return False
        self._calls[key] = time.time_ns() // 1000
        return True

    def write(self) -> None:
        """Write them all, if there are new ones: a process that is killed leaves those up to its last step."""
        if len(self._calls) == self._num_written:
            return
        self._num_written = len(self._calls)
        prefix = os.path.join(self._capture.options.directory, f"native-{os.getpid()}")
        names = list(dict.fromkeys(key[0] for key in self._calls))
        with open(f"{prefix}.names", "w") as file:
            file.writelines(f"{name}\n" for name in names)
        with open(f"{prefix}.bin", "wb") as file:
            for (name, kind, *values), time_us in self._calls.items():
                file.write(kind.pack(time_us, names.index(name), **dict(values)))


def _silence_virtual_gpu() -> None:
    """It is preloaded if torch has CUDA, and would write to the same file through a mapping, which ends the process by
    SIGBUS once the file is shorter."""
    library = ctypes.CDLL(None)
    if hasattr(library, "foretell_log_to"):
        library.foretell_log_to(b"")
