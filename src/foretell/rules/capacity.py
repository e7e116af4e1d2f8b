"""What of a card's memory there is for a job, and for PyTorch: the only place that says what fits.

The virtual GPU has the same rule in C (virtual/native/state.c), and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..records import Estimate, Gpu, LibraryBytes, Verdict
from . import loaded_libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    total_bytes: int
    context_bytes: int
    library_bytes: int
    """Of the libraries that are loaded."""
    used_by_others_bytes: int = 0

    @property
    def available_bytes(self) -> int:
        """What the job may take in all."""
        return self.total_bytes - self.used_by_others_bytes

    @property
    def reservable_bytes(self) -> int:
        """What PyTorch can reserve before it runs out of memory."""
        return self.available_bytes - self.context_bytes - self.library_bytes

    def spare_bytes(self, device_bytes: int) -> int:
        """What is left beside a job that takes so much of the card; less than nothing where that does not fit."""
        return self.available_bytes - device_bytes

    def verdict_of(self, reserved_bytes: int) -> Verdict:
        return "fits" if reserved_bytes <= self.reservable_bytes else "oom"


def capacity_for(
    gpu: Gpu, *, context_bytes: int, libraries: LibraryBytes, functions: Iterable[str], used_by_others_bytes: int = 0
) -> Capacity:
    """`functions`: those of NVIDIA's libraries that the job calls."""
    _, loaded = loaded_libraries(libraries, functions)
    return Capacity(
        total_bytes=gpu.total_bytes,
        context_bytes=context_bytes,
        library_bytes=loaded,
        used_by_others_bytes=used_by_others_bytes,
    )


def capacity_of(estimate: Estimate) -> Capacity:
    return Capacity(
        total_bytes=estimate.gpu.total_bytes,
        context_bytes=estimate.peak.context_bytes,
        library_bytes=estimate.peak.library_bytes,
        used_by_others_bytes=estimate.used_by_others_bytes,
    )
