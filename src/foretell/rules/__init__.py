"""Memory a job needs outside PyTorch's allocator: the CUDA context and the libraries' own memory, and the uncertainty
of the total."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..records import Cause, Gpu, LibraryBytes, PeakMemory
from .interval import context_shares
from .libraries import MEASURED_CONTEXTS, guessed_context_bytes, is_eager, library_bytes

__all__ = [
    "context_interval",
    "guessed_context_bytes",
    "is_eager",
    "library_bytes",
    "loaded_libraries",
    "widened",
]

_BATCH_NORM = "cudnnbatchnormalization"


def widened(peak: PeakMemory, causes: Iterable[Cause]) -> PeakMemory:
    """The peak with the interval and the request that these causes make."""
    reasons, size = list(causes), peak.device_bytes
    return replace(
        peak,
        device_low_bytes=max(0, size - sum(cause.below_bytes for cause in reasons)),
        device_high_bytes=size + sum(cause.above_bytes for cause in reasons),
        request_bytes=size + sum(cause.request_bytes for cause in reasons),
    )


def context_interval(gpu: Gpu, context_bytes: int, *, is_given: bool) -> tuple[int, int]:
    """What an empty process may take on that card; a given context is taken as it is."""
    if is_given:
        return context_bytes, context_bytes
    below, above, _ = context_shares(is_kind_measured=gpu.compute_capability in MEASURED_CONTEXTS)
    return int(context_bytes * (1 - below)), int(context_bytes * (1 + above))


def loaded_libraries(libraries: LibraryBytes, functions: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """The names of the libraries whose functions were called, and their total memory."""
    called = {function.lower() for function in functions}
    constants = {"cuBLAS": libraries.cublas, "cuDNN": libraries.cudnn, "NCCL": libraries.nccl}
    used = tuple(name for name in constants if any(function.startswith(name.lower()) for function in called))
    loaded = sum(constants[name] for name in used)
    if any(function.startswith(_BATCH_NORM) for function in called):
        loaded += libraries.cudnn_batch_norm
    return used, loaded
