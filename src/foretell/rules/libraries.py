"""The CUDA context and NVIDIA's libraries on a card: one quantity, which depends on how the driver loads kernels.

**Lazily** (PyTorch asks for it since 1.13, CUDA does so itself since 12.2): an empty process has none of them, and each
is loaded when it is first launched. Measured: 256 MiB on an RTX 3090 (torch 2.7), 426 on an RTX 6000 Ada (2.10), 483 on
an A100 (2025). On the A100, cuBLAS and cuDNN add 41 MiB together; on an RTX 3060 or 4060, 18.

**Eagerly** (CUDA before 11.7, or CUDA_MODULE_LOADING=EAGER): an empty process has all kernels of PyTorch and of the
libraries it is linked to, and cuDNN loads all of its own, library by library, when it is first used. One campaign of
2024 shows what that takes on an A100: 946 MiB more than an empty process in 2025, 254 for cuDNN's engines, 38 more for
batch normalization. The code in the libraries (`benchmarks/code_sizes.py`) is 1,061, 278 and 43 MiB for that card, so
0.89 to 0.91 of it is loaded; on other cards, what was measured is scaled by the code for their architecture.

A context that is given tells which of the two it was. For NCCL there is one number, a guess: its code and what it takes
before it connects to other ranks (see nccl.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..records import Gpu, LibraryBytes
from ..units import MIB

MEASURED_CONTEXTS = ((8, 0), (8, 6), (8, 9))
"""Where empty processes were measured, with different drivers: A100 13 % above the guess, RTX 3090
and RTX 6000 Ada 5 and 6 %; with eager loading, A100 4 %."""
_NCCL_BYTES = 64 * MIB
_LAZY_DATA_CENTRE = LibraryBytes(cublas=41 * MIB, cudnn=0, nccl=_NCCL_BYTES)
_LAZY = LibraryBytes(cublas=18 * MIB, cudnn=0, nccl=_NCCL_BYTES)


@dataclass(frozen=True, slots=True)
class _Code:
    """MiB."""

    process: float
    """What PyTorch is linked to, without cuDNN."""
    engines: float
    """Of cuDNN."""
    operators: float
    """Of cuDNN: batch normalization and others."""


_LOADED_ON_SM80 = _Code(946, 254, 38)
_CODE = {
    (6, 0): _Code(678.6, 188.0, 35.6),
    (7, 0): _Code(844.1, 255.4, 44.4),
    (7, 5): _Code(899.9, 269.2, 43.6),
    (8, 0): _Code(1060.9, 278.3, 42.8),
    (8, 6): _Code(1087.1, 287.0, 42.6),
    (8, 9): _Code(1121.5, 287.0, 42.6),
    (9, 0): _Code(1910.5, 284.1, 47.5),
    (10, 0): _Code(3031.8, 645.3, 72.3),
    (12, 0): _Code(1980.3, 398.8, 73.6),
}
"""Up to 9.0 of torch 2.6 with CUDA 12.4, newer ones of torch 2.15 with CUDA 13.2."""


def is_eager(variables: Mapping[str, str]) -> bool:
    """Whether a process with these variables loads kernels eagerly. torch sets LAZY itself where nothing is set."""
    return variables.get("CUDA_MODULE_LOADING", "").upper() == "EAGER"


def guessed_context_bytes(gpu: Gpu, *, is_eager: bool) -> int:
    """Of an empty process."""
    return gpu.context_bytes + (_eager_bytes(gpu) if is_eager else 0)


def library_bytes(gpu: Gpu, *, context_bytes: int | None = None, is_eager: bool = False) -> LibraryBytes:
    """`context_bytes`: of an empty process, if it was measured. One that has half of what eager loading adds, or more,
    is taken for eager. P100, V100, A100, H100, B200 have compute capabilities N.0; 12.0 is a GeForce card."""
    if context_bytes is not None:
        is_eager = context_bytes > gpu.context_bytes + _eager_bytes(gpu) // 2
    if is_eager:
        own, known = _code(gpu), _CODE[8, 0]
        engines = _LOADED_ON_SM80.engines * own.engines / known.engines
        operators = _LOADED_ON_SM80.operators * own.operators / known.operators
        return LibraryBytes(
            cublas=0, cudnn=round(engines * MIB), nccl=_NCCL_BYTES, cudnn_batch_norm=round(operators * MIB)
        )
    major, minor = gpu.compute_capability
    return _LAZY if minor or major >= 12 else _LAZY_DATA_CENTRE


def _eager_bytes(gpu: Gpu) -> int:
    """What eager loading adds to an empty process."""
    return round(_LOADED_ON_SM80.process * _code(gpu).process / _CODE[8, 0].process * MIB)


def _code(gpu: Gpu) -> _Code:
    """Of the highest known capability that the card has; of older cards, that of the oldest."""
    known = [each for each in _CODE if each <= gpu.compute_capability]
    return _CODE[max(known, default=min(_CODE))]
