"""Memory that NVIDIA's libraries use on a card: handles and kernel code, loaded on first use.

Fitted to measured runs with CUDA 12 and cuDNN 9.1 (docs/accuracy.md), with as few constants as the data supports:

- on cards with full-rate double precision (A100), cuBLAS stays within the context as measured in those runs, cuDNN uses
  254 MiB for convolutions and 38 more for batch normalization;
- on the others (RTX 3060 and 4060) both together use 18 MiB.

For NCCL there is one number, a guess: its code and what it takes before it connects to other ranks (see nccl.py).
"""

from __future__ import annotations

from ..records import Gpu, LibraryBytes
from ..units import MIB

_NCCL_BYTES = 64 * MIB
_DATA_CENTRE = LibraryBytes(cublas=0, cudnn=254 * MIB, nccl=_NCCL_BYTES, cudnn_batch_norm=38 * MIB)
_OTHERS = LibraryBytes(cublas=18 * MIB, cudnn=0, nccl=_NCCL_BYTES)


def library_bytes(gpu: Gpu) -> LibraryBytes:
    """P100, V100, A100, H100, B200 have compute capabilities N.0; 12.0 is a GeForce card."""
    major, minor = gpu.compute_capability
    return _DATA_CENTRE if minor == 0 and major < 12 else _OTHERS
