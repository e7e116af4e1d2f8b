"""Journals the settings of PyTorch's allocator: when CUDA starts, and whenever the script changes them.

A script may set PYTORCH_CUDA_ALLOC_CONF in os.environ after importing torch, so no other process can know. torch reads
the variable once, when CUDA is initialised (seen with 2.6 and 2.15); a later call of
`torch.cuda.memory._set_allocator_settings` replaces all of it, and a memory snapshot shows the current settings.
"""

from __future__ import annotations

import os
from typing import Any

from ..capture import Capture
from .history import snapshot

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first is the newer name, from torch 2.9 on."""
SETTERS = ("_cuda_cudaCachingAllocator_set_allocator_settings", "_accelerator_setAllocatorSettings")
"""In torch._C; the second from torch 2.9 on."""


def install(capture: Capture, torch: Any) -> None:
    """Call while CUDA is being initialised."""
    backend = torch.cuda.get_allocator_backend()

    def write() -> None:
        capture.journal.write("allocator", settings=settings_now(torch), backend=backend)

    def announcing(original: Any) -> Any:
        def set_allocator_settings(text: str) -> Any:
            result = original(text)
            capture.guarded("the allocator's settings", write)
            return result

        return set_allocator_settings

    write()
    for name in SETTERS:
        if hasattr(torch._C, name):
            capture.patches.wrap(torch._C, name, announcing)


def settings_now(torch: Any) -> str:
    try:
        settings = snapshot(torch)["allocator_settings"].get("PYTORCH_CUDA_ALLOC_CONF")
    except RuntimeError:  # cudaMallocAsync takes no snapshots
        settings = None
    return settings_of_environment() if settings is None else str(settings)


def settings_of_environment() -> str:
    return next(filter(None, map(os.environ.get, VARIABLES)), "")
