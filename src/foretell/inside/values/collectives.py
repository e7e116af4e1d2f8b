"""Values that other ranks have sent stay known: the virtual GPU has written them, but C cannot tell when a tensor dies
and its memory becomes another one's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from ..patches import Patches
from .mode import Values

RECEIVING = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "gather", "scatter", "recv", "recv_anysource",
)  # fmt: skip
"""Methods of ProcessGroup that write into tensors they are given."""


def watch(torch: Any, patches: Patches, mode: Values) -> None:
    group = torch.distributed.ProcessGroup
    queued: list[Any] = []
    """Tensors of calls that are carried out at the end of a block (`batch_isend_irecv`)."""
    depth = 0

    def receiving(original: Any) -> Any:
        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            work = original(self, *args, **kwargs)
            tensors = list(_tensors(torch, (args, tuple(kwargs.values()))))
            if depth:
                queued.extend(tensors)
            else:
                mode.keep_known(tensors)
            return work

        return call

    def beginning(original: Any) -> Any:
        @wraps(original)
        def begin(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            result = original(*args, **kwargs)
            depth += 1
            return result

        return begin

    def ending(original: Any) -> Any:
        @wraps(original)
        def end(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth = max(0, depth - 1)
            result = original(*args, **kwargs)
            if not depth:
                mode.keep_known(queued)
                queued.clear()
            return result

        return end

    for name in RECEIVING:
        if hasattr(group, name):
            patches.wrap(group, name, receiving)
    patches.wrap(group, "_start_coalescing", beginning)
    patches.wrap(group, "_end_coalescing", ending)


def _tensors(torch: Any, values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(torch, value)
