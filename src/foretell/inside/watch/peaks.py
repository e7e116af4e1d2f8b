"""Memory peaks since the start of the process, per device, from torch's memory statistics.

Records the peak before each `torch.cuda.reset_peak_memory_stats`; the script sees its usual values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..capture import Capture

NEGLIGIBLE_BYTES = 2048
"""What a step or a batch may leave behind: a few scalars, as in `losses.append(loss.detach())`."""

Summary = tuple[tuple[int, int], ...]
"""(peak allocated, peak reserved) of each device."""


class Peaks:
    def __init__(self) -> None:
        self._before_reset: dict[int, tuple[int, int]] = {}
        self._torch: Any = None

    def install(self, capture: Capture, torch: Any) -> None:
        self._torch = torch
        capture.end_values = lambda: {"devices": self.devices()}
        # All of torch.cuda.reset_peak_memory_stats, reset_max_memory_allocated and reset_max_memory_cached end here.
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):  # the second: torch 2.9 and newer
            if hasattr(torch._C, name):
                capture.patches.wrap(torch._C, name, self._remembering)

    def devices(self) -> list[dict[str, int]]:
        """One record per device in use, in the journal's format."""
        if self._torch is None or not self._torch.cuda.is_initialized():
            return []
        found = []
        for device in range(self._torch._C._cuda_getDeviceCount()):
            allocated, reserved, peak_allocated, peak_reserved = self._now(device)
            before_allocated, before_reserved = self._before_reset.get(device, (0, 0))
            peak_allocated, peak_reserved = max(peak_allocated, before_allocated), max(peak_reserved, before_reserved)
            if device == 0 or peak_reserved:
                found.append(
                    {
                        "device": device,
                        "allocated_bytes": allocated,
                        "reserved_bytes": reserved,
                        "peak_allocated_bytes": peak_allocated,
                        "peak_reserved_bytes": peak_reserved,
                    }
                )
        return found

    def summary(self) -> Summary:
        return tuple((each["peak_allocated_bytes"], each["peak_reserved_bytes"]) for each in self.devices())

    def allocated_now(self) -> int:
        return sum(each["allocated_bytes"] for each in self.devices())

    def _now(self, device: int) -> tuple[int, int, int, int]:
        stats = self._torch._C._cuda_memoryStats(device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return allocated["current"], reserved["current"], allocated["peak"], reserved["peak"]

    def _remembering(self, original: Any) -> Any:
        def reset_and_remember(device: int) -> Any:
            if self._torch.cuda.is_initialized():
                _, _, allocated, reserved = self._now(device)
                before_allocated, before_reserved = self._before_reset.get(device, (0, 0))
                self._before_reset[device] = max(allocated, before_allocated), max(reserved, before_reserved)
            return original(device)

        return reset_and_remember


def are_steady(summaries: Sequence[Summary]) -> bool:
    """Whether no peak has grown from one summary to the next."""
    return all(
        [reserved for _, reserved in before] == [reserved for _, reserved in after]
        and sum(allocated for allocated, _ in after) <= sum(allocated for allocated, _ in before) + NEGLIGIBLE_BYTES
        for before, after in pairwise(summaries)
    )
