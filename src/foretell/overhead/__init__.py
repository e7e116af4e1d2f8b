"""What a job takes on the card outside PyTorch's allocator: the CUDA context and the libraries' own memory.

A plain first model, to be calibrated. The constants are from measured runs: about 18 MiB beside PyTorch's memory on
Transformer training (cuBLAS: handles and loaded kernels; RTX 3060/4060 and A100, torch 2.6), about 281 MiB on CNN
training on an A100 (cuDNN and cuBLAS together). For NCCL there is one number (nccl#964: 0.53 GiB for a communicator of
two ranks on A100); a single rank, all that runs today, keeps far less, and its constant is a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretell.records import LibraryBytes
from foretell.units import MIB

LIBRARIES = LibraryBytes(cublas=18 * MIB, cudnn=263 * MIB, nccl=64 * MIB)

# The context is a guess (gpus.toml), and what was measured is far above it: 1,429 MiB in the A100 campaign against a
# guess of 426, 1,343 MiB for an empty process on a V100 against 310. The upper end is set so that it holds both; the
# lower end is a guess as well.
_CONTEXT_LOW = 0.6
_CONTEXT_HIGH_BYTES = 1040 * MIB
# With a measured context only the libraries are uncertain: half to one and a half times the constant.
_LIBRARY_SPREAD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes beside `reserved`, and how far off they may be."""

    context_bytes: int
    library_bytes: int
    library_names: tuple[str, ...]
    low_bytes: int
    """Of context and libraries together."""
    high_bytes: int


def overhead(
    *, context_bytes: int, is_context_given: bool, libraries: LibraryBytes, functions: Iterable[str], other_bytes: int
) -> Overhead:
    """`functions`: those of NVIDIA's libraries it called; `other_bytes`: taken from the driver, but not by PyTorch."""
    called = {function.lower() for function in functions}
    constants = {"cuBLAS": libraries.cublas, "cuDNN": libraries.cudnn, "NCCL": libraries.nccl}
    used = tuple(name for name in constants if any(function.startswith(name.lower()) for function in called))
    loaded = sum(constants[name] for name in used)
    context_low = context_bytes if is_context_given else int(context_bytes * _CONTEXT_LOW)
    context_high = context_bytes if is_context_given else context_bytes + _CONTEXT_HIGH_BYTES
    return Overhead(
        context_bytes=context_bytes,
        library_bytes=loaded + other_bytes,
        library_names=used,
        low_bytes=context_low + int(loaded * (1 - _LIBRARY_SPREAD)) + other_bytes,
        high_bytes=context_high + int(loaded * (1 + _LIBRARY_SPREAD)) + other_bytes,
    )
