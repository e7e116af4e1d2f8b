"""Notes when the script asks what differs between cards of one kind: their memory and their name.

A script that chooses its batch size by the card's memory does something else on every card; the runs on one card then
say nothing about another (`plan/fit.py`). Compute capability and the number of SMs are not noted: they are part of the
kind.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from types import FrameType
from typing import Any

from ..capture import Capture
from ..where import OWN_FOLDERS, is_in_library, where_of

_MEMORY, _NAME = "the card's memory", "the card's name"
_FUNCTIONS = {
    "mem_get_info": ("torch.cuda", "torch.cuda.memory"),
    "set_per_process_memory_fraction": ("torch.cuda", "torch.cuda.memory"),
    "get_memory_info": ("torch.accelerator", "torch.accelerator.memory"),
}
"""Of torch, with the modules that have them; the last one from torch 2.9 on."""
_PROPERTIES = {"total_memory": _MEMORY, "name": _NAME}
_NVML = {"nvmlDeviceGetMemoryInfo": _MEMORY, "nvmlDeviceGetName": _NAME}
_PASSES_ON = ("get_device_name", "get_device_properties", *_FUNCTIONS)
"""Functions of torch that ask for somebody else."""


class CardQueries:
    def __init__(self, capture: Capture, torch: Any) -> None:
        self._capture = capture
        self._torch = torch
        self._folders = tuple(
            os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), name) + os.sep
            for name in ("torch", "triton")
        )
        self._seen: set[tuple[str, str | None]] = set()

    def install(self) -> None:
        """At the import of torch: these functions may be what starts CUDA."""
        for name, modules in _FUNCTIONS.items():
            for module in (sys.modules.get(module) for module in modules):
                if module is not None and hasattr(module, name):
                    self._capture.patches.replace(module, name, self._noting(getattr(module, name), _MEMORY))
        self._capture.imports.when_imported("pynvml", self._watch_nvml)

    def cuda_starts(self) -> None:
        """The class does not exist before."""
        properties = getattr(self._torch._C, "_CudaDeviceProperties", None)
        for name, what in _PROPERTIES.items():
            if hasattr(properties, name):
                original = getattr(properties, name)
                replacement = property(self._noting(original.__get__, what))
                self._capture.patches.replace(properties, name, replacement)

    def _watch_nvml(self, module: Any) -> None:
        for name, what in _NVML.items():
            if hasattr(module, name):
                self._capture.patches.replace(module, name, self._noting(getattr(module, name), what))

    def _noting(self, original: Any, what: str) -> Any:
        @wraps(original)
        def ask(*args: Any, **kwargs: Any) -> Any:
            self._note(what, sys._getframe(1))
            return original(*args, **kwargs)

        return ask

    def _note(self, what: str, frame: FrameType | None) -> None:
        while frame is not None and self._passes_on(frame):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(self._folders):
            return  # torch asks for its own warnings, caches and messages
        if what == _NAME and is_in_library(frame.f_code.co_filename):
            return  # libraries show it, or look up a peak rate
        where = where_of(frame)
        if (what, where) not in self._seen:
            self._seen.add((what, where))
            self._capture.journal.write("card_query", what=what, where=where)

    def _passes_on(self, frame: FrameType) -> bool:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        return file.startswith(OWN_FOLDERS) or (name in _PASSES_ON and file.startswith(self._folders))
