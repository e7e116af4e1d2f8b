"""Memory that NVIDIA's libraries use on a card: handles and kernel code, loaded on first use.

It belongs together with the CUDA context. If the driver loads modules eagerly (CUDA before 11.7, or
CUDA_MODULE_LOADING=EAGER), the context has all kernels of PyTorch and of cuBLAS, and the first use of cuDNN loads all
of its own; if it loads them lazily, as PyTorch has it since 2.0, both are small. A context that is given tells which of
the two it was. Measured runs, with CUDA 12 and cuDNN 9 (docs/accuracy.md), with as few constants as they support:

- A100, an empty process of 1,429 MiB: cuBLAS adds nothing, cuDNN 254 MiB for convolutions and 38 more for batch
  normalization. (V100 with CUDA 11: an empty process of 1,343 MiB.)
- A100, an empty process of 483 MiB: both libraries add 41 MiB together.
- RTX 3060 and 4060, without the context: both add 18 MiB together.

For NCCL there is one number, a guess: its code and what it takes before it connects to other ranks (see nccl.py).
"""

from __future__ import annotations

from ..records import Gpu, LibraryBytes
from ..units import MIB

_NCCL_BYTES = 64 * MIB
_EAGER = LibraryBytes(cublas=0, cudnn=254 * MIB, nccl=_NCCL_BYTES, cudnn_batch_norm=38 * MIB)
_LAZY_DATA_CENTRE = LibraryBytes(cublas=41 * MIB, cudnn=0, nccl=_NCCL_BYTES)
_LAZY = LibraryBytes(cublas=18 * MIB, cudnn=0, nccl=_NCCL_BYTES)
_MORE_IF_EAGER = 512 * MIB
"""About half of what eager loading adds to an empty process: 946 MiB between two campaigns on an A100, 1,033 on a V100
above the guess for it."""


def library_bytes(gpu: Gpu, *, context_bytes: int | None = None) -> LibraryBytes:
    """`context_bytes`: of an empty process, if it was measured. P100, V100, A100, H100, B200 have compute capabilities
    N.0; 12.0 is a GeForce card."""
    major, minor = gpu.compute_capability
    if minor or major >= 12:
        return _LAZY
    is_eager = context_bytes is not None and context_bytes > gpu.context_bytes + _MORE_IF_EAGER
    return _EAGER if is_eager else _LAZY_DATA_CENTRE
