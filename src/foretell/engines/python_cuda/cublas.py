"""Workspaces of cuBLAS and cuBLASLt for a version of torch: kept per thread and stream, or allocated per call."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ...rules import cublas as rules

if TYPE_CHECKING:
    from .device import PythonCuda


class Cublas:
    def __init__(self, device: PythonCuda) -> None:
        self._device = device
        config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
        workspaces = rules.workspaces(device.capability, device.version, config)
        self._workspace_bytes = workspaces.num_bytes
        self.keeps_workspaces = workspaces.is_kept
        self.shares_workspaces = workspaces.is_shared
        self._kept: dict[tuple[int, int], Any] = {}
        """By thread and stream."""

    def workspace(self) -> Any:
        """The workspace of one call; None if it is kept."""
        device = self._device
        device.load_library("cublasCreate")
        with device.rule("cuBLAS workspace"):
            if not self.keeps_workspaces:
                return device.buffer(self._workspace_bytes)
            key = (threading.get_ident(), device.memory.where.stream)
            if key not in self._kept:
                self._kept[key] = device.buffer(self._workspace_bytes)
        return None

    def lt_workspace(self) -> Any:
        device = self._device
        if self.shares_workspaces:
            return self.workspace()
        with device.rule("cuBLASLt workspace"):
            taken = device.buffer(rules.CUBLASLT_BYTES)
        if self.keeps_workspaces:
            self.workspace()  # cuBLASLt uses the cuBLAS handle, which comes with its workspace
        return taken
