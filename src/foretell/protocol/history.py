"""PyTorch's memory history, as the watched process writes it and the trace keeps it.

A window `history-<pid>-<n>.marshal` is `{"device", "columns", "stacks", "frames", "origins", "repeated"}`: the bytes of
one array for each of COLUMNS, stacks as lists of frame numbers (innermost first), frames as (file, line, function),
origins as rows of ORIGIN, and repetitions that were left out, each as (after how many allocations of the window, how
many of the last allocations on the device it repeats).
"""

from __future__ import annotations

from typing import Final

ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom", "user_defined",
)  # fmt: skip
COLUMNS: Final = {
    "time_us": "q", "action": "B", "address": "Q", "size": "q", "stream": "Q", "stack": "i", "origin": "i",
}  # fmt: skip
"""Each event's values, by the type letters of the array module. `stack` and `origin` are row numbers, or
marks.NOTHING."""
ORIGIN_NAMES: Final = ("operator", "kernel", "kernel_reason", "module", "rule")
ORIGIN: Final = (*ORIGIN_NAMES, "phase")
"""What an allocation is for, as far as the process knows it; None where it does not."""
