"""The card the job will run on."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.records import Gpu
from foretell.rules import cublas
from foretell.versions import NEWEST_TORCH, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    gpu: Gpu
    torch: Version = NEWEST_TORCH
    cublas_config: str = ""
    """CUBLAS_WORKSPACE_CONFIG of the job, if known; never that of the importing process."""

    @property
    def cublas(self) -> cublas.Workspaces:
        return cublas.workspaces(self.gpu.compute_capability, self.torch, self.cublas_config)
