"""How much of a card's memory is available to a job and to PyTorch: the only place that decides what fits.

The virtual GPU implements the same rule in C (virtual/native/state.c), and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..records import Estimate, Gpu, LibraryBytes, Verdict
from . import loaded_libraries

Grade = Literal["fits", "tight", "oom"]
"""tight: the job fits, but what should be requested for it does not."""


def grade(available_bytes: int, *, device_bytes: int, request_bytes: int) -> Grade:
    if request_bytes <= available_bytes:
        return "fits"
    return "tight" if device_bytes <= available_bytes else "oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    total_bytes: int
    context_bytes: int
    library_bytes: int
    """Memory of the loaded libraries."""
    used_by_others_bytes: int = 0

    @property
    def available_bytes(self) -> int:
        """Memory available to the job in total."""
        return self.total_bytes - self.used_by_others_bytes

    @property
    def reservable_bytes(self) -> int:
        """How much PyTorch can reserve before it runs out of memory."""
        return self.available_bytes - self.context_bytes - self.library_bytes

    def spare_bytes(self, device_bytes: int) -> int:
        """Memory left over by a job that needs `device_bytes`; negative if it does not fit."""
        return self.available_bytes - device_bytes

    def verdict_of(self, reserved_bytes: int) -> Verdict:
        return "fits" if reserved_bytes <= self.reservable_bytes else "oom"

    def grade_of(self, *, device_bytes: int, request_bytes: int) -> Grade:
        return grade(self.available_bytes, device_bytes=device_bytes, request_bytes=request_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Jobs that run at the same time on one card. Their peaks add up: nothing keeps them from coming together."""

    available_bytes: int
    device_bytes: int
    request_bytes: int

    @property
    def spare_bytes(self) -> int:
        """What is left of the card after the requests of all; negative if that is too little."""
        return self.available_bytes - self.request_bytes

    @property
    def grade(self) -> Grade:
        return grade(self.available_bytes, device_bytes=self.device_bytes, request_bytes=self.request_bytes)


def side_by_side(
    gpu: Gpu, needs: Iterable[tuple[int, int, int]], *, shares_context: bool, used_by_others_bytes: int = 0
) -> SideBySide:
    """`needs`: of each job the memory it needs, what to request for it, and how much of either is contexts of CUDA.
    With `shares_context` (MPS) there is one context for all; otherwise each process has its own."""
    device, request, contexts = (sum(column) for column in zip(*needs, strict=True))
    saved = max(0, contexts - gpu.context_bytes) if shares_context else 0
    return SideBySide(
        available_bytes=gpu.available_bytes(used_by_others_bytes),
        device_bytes=device - saved,
        request_bytes=request - saved,
    )


def capacity_for(
    gpu: Gpu, *, context_bytes: int, libraries: LibraryBytes, functions: Iterable[str], used_by_others_bytes: int = 0
) -> Capacity:
    """`functions`: the functions of NVIDIA's libraries the job calls."""
    _, loaded = loaded_libraries(libraries, functions)
    return Capacity(
        total_bytes=gpu.total_bytes,
        context_bytes=context_bytes,
        library_bytes=loaded,
        used_by_others_bytes=used_by_others_bytes,
    )


def smallest_that_fit(gpus: Iterable[Gpu], estimate: Estimate) -> list[Gpu]:
    """The cards on which the job fits, smallest first; each with its own context, unless one was given."""
    peak = estimate.peak
    return [
        gpu
        for gpu in sorted(gpus, key=lambda each: each.total_bytes)
        if Capacity(
            total_bytes=gpu.total_bytes,
            context_bytes=peak.context_bytes if estimate.is_context_given else gpu.context_bytes,
            library_bytes=peak.library_bytes,
            used_by_others_bytes=estimate.used_by_others_bytes + estimate.other_processes_bytes,
        ).verdict_of(peak.reserved_bytes)
        == "fits"
    ]


LONGEST_TRAINING = 1_000_000
"""Steps. Few trainings have more: BERT was pre-trained for as many, nanoGPT's GPT-2 for 600,000."""


def steps_until_full(estimate: Estimate) -> int | None:
    """After how many more steps what leaks will have filled the card; None: nothing leaks.

    Leaks matter up to LONGEST_TRAINING. Of a job that does not fit anyway, the whole card is counted.
    """
    growth = sum(leak.bytes_per_step for leak in estimate.leaks)
    if not growth:
        return None
    capacity = capacity_of(estimate)
    room = capacity.available_bytes if estimate.oom else capacity.spare_bytes(estimate.device_bytes)
    return max(0, room) // growth


def capacity_of(estimate: Estimate) -> Capacity:
    return Capacity(
        total_bytes=estimate.gpu.total_bytes,
        context_bytes=estimate.peak.context_bytes,
        library_bytes=estimate.peak.library_bytes,
        used_by_others_bytes=estimate.used_by_others_bytes,
    )
