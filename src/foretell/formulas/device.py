"""What a job takes on the card beside PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.features import Guess, JobFeatures
from foretell.records import Gpu
from foretell.rules import library_bytes, loaded_libraries


def beside_bytes(features: JobFeatures, gpu: Gpu) -> int:
    """Handles and kernels of the libraries that the job's layers call."""
    _, num_bytes = loaded_libraries(library_bytes(gpu), _functions(features))
    return num_bytes


def device_bytes(guess: Guess, features: JobFeatures, gpu: Gpu, *, context_bytes: int) -> int:
    if guess.is_whole_device:
        return guess.reserved_bytes
    return guess.reserved_bytes + beside_bytes(features, gpu) + context_bytes


def _functions(features: JobFeatures) -> Iterator[str]:
    kinds = {layer.kind for layer in features.layers or ()}
    if "Linear" in kinds or features.parameters:
        yield "cublasSgemm"
    if features.convolutions or any(kind.startswith("Conv") for kind in kinds):
        yield "cudnnConvolutionForward"
        if any(kind.startswith(("BatchNorm", "SyncBatchNorm")) for kind in kinds):
            yield "cudnnBatchNormalizationForward"
