"""Where the job will run."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.overhead import kernels
from foretell.records import Gpu

NEWEST_TORCH = (2, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    gpu: Gpu
    torch: tuple[int, int] = NEWEST_TORCH

    @property
    def cublas_bytes(self) -> int:
        return kernels.cublas_workspace(self.gpu.compute_capability, self.torch)
