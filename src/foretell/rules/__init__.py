"""Memory a job needs outside PyTorch's allocator: the CUDA context and the libraries' own memory, and the uncertainty
of the total."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..records import LibraryBytes
from ..units import MIB
from .interval import CONVOLUTIONS, PLAIN, WITHOUT_WORKSPACES
from .libraries import library_bytes

__all__ = ["Overhead", "context_interval", "library_bytes", "loaded_libraries", "overhead"]

# The context is a guess (gpus.toml), and measured values are far above it: 1,429 MiB in one A100 campaign and about 480
# in the next, against a guess of 426; 1,343 MiB for an empty process on a V100 against 310. The upper end is chosen to
# cover them all; the lower end is a guess as well.
_CONTEXT_LOW = 0.6
_CONTEXT_HIGH_BYTES = 1040 * MIB
_BATCH_NORM = "cudnnbatchnormalization"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes in addition to `reserved`, and the uncertainty of the total."""

    context_bytes: int
    library_bytes: int
    library_names: tuple[str, ...]
    low_bytes: int
    """Low estimate of the bytes in addition to `reserved`; negative where `reserved` itself may be too high."""
    high_bytes: int
    request_bytes: int


def overhead(
    *,
    context_bytes: int,
    is_context_given: bool,
    libraries: LibraryBytes,
    functions: Iterable[str],
    other_bytes: int,
    reserved_bytes: int,
    convolution_bytes: int,
    has_workspaces: bool,
    connection_bytes: int = 0,
) -> Overhead:
    """`functions`: the functions of NVIDIA's libraries the job called; `other_bytes`: taken from the driver, but not by
    PyTorch; `convolution_bytes`: x, y and w of the largest convolution, 0 without any; `has_workspaces`: whether a
    convolution used a workspace; `connection_bytes`: of `other_bytes`, NCCL's buffers, which depend on the topology."""
    used, loaded = loaded_libraries(libraries, functions)
    spreads = PLAIN if not convolution_bytes else CONVOLUTIONS if has_workspaces else WITHOUT_WORKSPACES
    below, above, far_above = (
        spread.bytes_for(reserved_bytes, convolution_bytes) for spread in (spreads.low, spreads.high, spreads.request)
    )
    context_low, context_high = context_interval(context_bytes, is_given=is_context_given)
    beside = loaded + other_bytes
    return Overhead(
        context_bytes=context_bytes,
        library_bytes=beside,
        library_names=used,
        low_bytes=context_low + beside - below - connection_bytes // 2,
        high_bytes=context_high + beside + above + connection_bytes,
        request_bytes=context_high + beside + far_above + connection_bytes,
    )


def context_interval(context_bytes: int, *, is_given: bool) -> tuple[int, int]:
    """What an empty process may take on cards of that kind; a given context is taken as it is."""
    if is_given:
        return context_bytes, context_bytes
    return int(context_bytes * _CONTEXT_LOW), context_bytes + _CONTEXT_HIGH_BYTES


def loaded_libraries(libraries: LibraryBytes, functions: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """The names of the libraries whose functions were called, and their total memory."""
    called = {function.lower() for function in functions}
    constants = {"cuBLAS": libraries.cublas, "cuDNN": libraries.cudnn, "NCCL": libraries.nccl}
    used = tuple(name for name in constants if any(function.startswith(name.lower()) for function in called))
    loaded = sum(constants[name] for name in used)
    if any(function.startswith(_BATCH_NORM) for function in called):
        loaded += libraries.cudnn_batch_norm
    return used, loaded
