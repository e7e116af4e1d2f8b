"""Writes an `oom` line as soon as PyTorch runs out of memory, even if the script catches the error.

The observer is called before the exception is made, so the message here is the first sentence of PyTorch's; the full
message is in the `exception` line if the error is not caught.
"""

from __future__ import annotations

from typing import Any

from ..capture import Capture
from ..where import where_allocated


def install(capture: Capture, torch: Any) -> None:
    def on_out_of_memory(device: int, requested_bytes: int, total_bytes: int, free_bytes: int) -> None:
        try:
            message = (
                f"CUDA out of memory. Tried to allocate {format_size(requested_bytes)}. GPU {device} has a total "
                f"capacity of {format_size(total_bytes)} of which {format_size(free_bytes)} is free."
            )
            capture.journal.write(
                "oom",
                step=capture.num_steps,
                phase=capture.phase,
                requested_bytes=requested_bytes,
                message=message,
                where=where_allocated(),
                free_bytes=free_bytes,
                total_bytes=total_bytes,
                device=device,
            )
        except Exception as error:  # raising here would replace PyTorch's own exception
            capture.hook_failed("out of memory", error)

    torch._C._cuda_attach_out_of_memory_observer(on_out_of_memory)


def format_size(num_bytes: int) -> str:
    """Format like `format_size` in c10/cuda/CUDACachingAllocator.cpp."""
    if num_bytes <= 1024:
        return f"{num_bytes} bytes"
    for unit, name in ((1024, "KiB"), (1 << 20, "MiB")):
        if num_bytes <= unit * 1024:
            return f"{num_bytes / unit:.2f} {name}"
    return f"{num_bytes / (1 << 30):.2f} GiB"
