"""Which functions of NVIDIA's libraries the job would have called, in the format of the virtual GPU's own log.

A library takes memory of the card for itself when its first handle is made; that memory is then gone for PyTorch.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

_LIBRARY_CALL = 4  # trace/folder.py
_TAKES = {
    "cublasCreate": "cublas_library",
    "cudnnCreate": "cudnn_library",
    "cudnnBatchNormalization": "batch_norm_library",
    "ncclCommInitRank": "nccl_library",
}


class Libraries:
    def __init__(self, run: Any, card: dict[str, Any], device: Any) -> None:
        self._run = run
        self._card = card
        self._device = device
        self._calls: dict[tuple[Any, ...], int] = {}
        self._taken: set[str] = set()

    def call(self, name: str, *numbers: int) -> None:
        """The first number is the workspace; each different call is kept once."""
        key = (name, *numbers)
        if key in self._calls:
            return
        self._calls[key] = time.time_ns() // 1000
        for prefix, option in _TAKES.items():
            if name.startswith(prefix) and prefix not in self._taken:
                self._taken.add(prefix)
                self._device.capacity_bytes -= int(self._card.get(option, 0))

    def write(self) -> None:
        prefix = os.path.join(self._run.options.directory, f"native-{os.getpid()}")
        names = list(dict.fromkeys(key[0] for key in self._calls))
        with open(f"{prefix}.names", "w") as file:
            file.writelines(f"{name}\n" for name in names)
        with open(f"{prefix}.bin", "wb") as file:
            for (name, *numbers), time_us in self._calls.items():
                workspace, *sizes = [*numbers, 0][:1] + numbers[1:]
                fields = [workspace, 0, *sizes, 0, 0, 0, 0][:6]
                file.write(struct.pack("<QIIqqqqqq", time_us, _LIBRARY_CALL, names.index(name), *fields))
