"""Refuses training over several ranks: a rank would wait for the others for ever."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

from ..capture import Capture

HINT = (
    "Run one process: use torchrun --nproc_per_node=1, or set WORLD_SIZE=1 and RANK=0. A rank of a DDP job needs about "
    "as much memory as one process; with FSDP, ZeRO or tensor parallelism it needs less, and one process does not show "
    "how much"
)


def install(capture: Capture, torch: Any) -> None:
    if not torch.distributed.is_available():
        return

    def refusing(original: Any) -> Any:
        @wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            num_ranks = _world_size(args, kwargs)
            if num_ranks > 1:
                capture.refuse(f"multi-process training (world_size={num_ranks}) is not supported yet", HINT)
            return original(*args, **kwargs)

        return init_process_group

    for module in (torch.distributed, torch.distributed.distributed_c10d):
        capture.patches.wrap(module, "init_process_group", refusing)


def _world_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    # (backend, init_method, timeout, world_size, ...) from torch 2.6 to 2.15; -1 means: from the environment.
    given = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
    if isinstance(given, int) and given > 0:
        return given
    method = kwargs.get("init_method", args[1] if len(args) > 1 else None) or ""
    _, _, query = str(method).partition("world_size=")
    words = [query.partition("&")[0], os.environ.get("WORLD_SIZE", "")]
    return next((int(word) for word in words if word.isdecimal()), 1)
