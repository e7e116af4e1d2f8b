"""Tells the virtual GPU and the journal which rank this process is, and how it ends.

The ranks of a job are ordinary processes that a launcher starts; each sees a card of its own. PyTorch's own
ProcessGroupNCCL runs above the virtual NCCL, which exchanges what the ranks decide by (native/libraries/nccl.c).
"""

from __future__ import annotations

import ctypes
import os
from functools import wraps
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..capture import Capture
from ..watch.process_end import ProcessEnd

TO_ITS_END, CUT_SHORT, BY_AN_EXCEPTION = range(3)
"""How a rank ends (native/libraries/exchange.h)."""
QUESTIONS = {"steps": 1, "evaluation": 2}
"""What the ranks agree on, by the number of the question."""


class Ranks:
    def __init__(self, capture: Capture, end: ProcessEnd) -> None:
        self._capture = capture
        self._end = end
        self._library: Any = None
        self._joined: tuple[int, int] | None = None

    def install(self, torch: Any, *, is_virtual: bool) -> None:
        if not torch.distributed.is_available():
            return

        def joining(original: Any) -> Any:
            @wraps(original)
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                rank, world_size = rank_of(args, kwargs)
                if world_size > 1 and not is_virtual:
                    self._capture.refuse(
                        f"the CPU engine cannot run a job of several ranks (world_size={world_size})",
                        "Install the CUDA build of torch, which needs no GPU here, or run one process (WORLD_SIZE=1)",
                    )
                if rank is not None:  # before the others can wait for this one
                    self._join(rank, world_size)
                result = original(*args, **kwargs)
                self._join(torch.distributed.get_rank(), torch.distributed.get_world_size())
                return result

            return init_process_group

        for module in (torch.distributed, torch.distributed.distributed_c10d):
            self._capture.patches.wrap(module, "init_process_group", joining)
            if is_virtual:
                self._capture.patches.wrap(module, "destroy_process_group", _draining)
        if is_virtual:
            self._capture.before_end.append(lambda: ctypes.CDLL(None).foretell_drain(1))

    def _join(self, rank: int, world_size: int) -> None:
        if world_size < 2 or self._joined == (rank, world_size):
            return
        if self._joined is None:
            self._library = ctypes.CDLL(None)  # the preloaded virtual GPU
            self._library.foretell_agree.argtypes = [ctypes.c_uint64, ctypes.c_int]
            self._capture.agree = self._agree
            self._capture.before_end.append(self._leave)
        self._joined = rank, world_size
        self._library.foretell_join(rank, world_size)
        self._capture.journal.write("rank", rank=rank, world_size=world_size, local_rank=_number("LOCAL_RANK"))

    def _leave(self) -> None:
        is_error = self._end.has_raised and not self._capture.is_cut_short
        how = BY_AN_EXCEPTION if is_error else CUT_SHORT if self._capture.is_cut_short else TO_ITS_END
        self._library.foretell_leave(how)

    def _agree(self, what: str, answer: bool) -> bool:
        return bool(self._library.foretell_agree(QUESTIONS[what], answer))


def _draining(original: Any) -> Any:
    """It waits until ProcessGroupNCCL's watchdog has seen all work end."""

    @wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        library = ctypes.CDLL(None)  # the preloaded virtual GPU
        library.foretell_drain(1)
        try:
            return original(*args, **kwargs)
        finally:
            library.foretell_drain(0)

    return destroy_process_group


def rank_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int]:
    """The rank and the number of ranks, as arguments of init_process_group and the environment say; None: not known
    before it has returned."""
    # (backend, init_method, timeout, world_size, rank, ...) from torch 2.6 to 2.15; -1 means: from elsewhere.
    names = ("backend", "init_method", "timeout", "world_size", "rank")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query = parse_qs(urlsplit(str(given.get("init_method") or "")).query)

    def number(name: str) -> int | None:
        value = given.get(name, -1)
        if isinstance(value, int) and value >= 0:
            return value
        words = [*query.get(name, []), os.environ.get(name.upper(), "")]
        return next((int(word) for word in words if word.isdecimal()), None)

    return number("rank"), number("world_size") or 1


def _number(variable: str) -> int | None:
    word = os.environ.get(variable, "")
    return int(word) if word.isdecimal() else None
