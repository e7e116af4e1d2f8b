"""What a job takes on the card beside PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.features import JobFeatures
from foretell.records import Gpu, LibraryBytes
from foretell.rules import library_bytes, loaded_libraries


def beside_bytes(features: JobFeatures, gpu: Gpu, *, context_bytes: int | None = None) -> int:
    """Handles and kernels of the libraries that the job's layers call. `context_bytes`: if it was measured."""
    return of_libraries(features, library_bytes(gpu, context_bytes=context_bytes))


def of_libraries(features: JobFeatures, libraries: LibraryBytes) -> int:
    """`libraries`: what each would take on the card."""
    _, num_bytes = loaded_libraries(libraries, _functions(features))
    return num_bytes


def _functions(features: JobFeatures) -> Iterator[str]:
    kinds = {layer.kind for layer in features.layers or ()}
    if "Linear" in kinds or features.parameters:
        yield "cublasSgemm"
    if features.convolutions or any(kind.startswith("Conv") and kind != "Conv1D" for kind in kinds):
        yield "cudnnConvolutionForward"
        if any(kind.startswith(("BatchNorm", "SyncBatchNorm")) for kind in kinds):
            yield "cudnnBatchNormalizationForward"
