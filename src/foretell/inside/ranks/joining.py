"""Tells the virtual GPU and the journal which rank this process is, and how it ends.

The ranks of a job are ordinary processes that a launcher starts; each sees a card of its own. PyTorch's own
ProcessGroupNCCL runs above the virtual NCCL, which exchanges what the ranks decide by (native/libraries/nccl.c).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from datetime import timedelta
from functools import wraps
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..capture import Capture
from ..watch.process_end import ProcessEnd
from .absent import Absent
from .connections import OPERATIONS, Connections
from .standing import tell_where_this_rank_waits

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
        self._of_absent: Absent | None = None
        self._connections: Connections | None = None

    def install(self, torch: Any, *, is_virtual: bool) -> None:
        if not torch.distributed.is_available():
            return

        def joining(original: Any) -> Any:
            @wraps(original)
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                rank, world_size = rank_of(args, kwargs)
                absent = self._absent(torch) if is_virtual else None
                if absent is not None and rank is not None:
                    absent.joins(rank, world_size, self._size_in_part())
                    args, kwargs = (), by_name(args, kwargs, rank=rank, world_size=world_size, store=absent.store())
                if world_size > 1 and not is_virtual:
                    self._capture.refuse(
                        f"the CPU engine cannot run a job of several ranks (world_size={world_size})",
                        "Install the CUDA build of torch, which needs no GPU here, or run one process (WORLD_SIZE=1)",
                    )
                if rank is not None:  # before the others can wait for this one
                    self._join(torch, rank, world_size)
                result = original(*args, **kwargs)
                self._join(torch, torch.distributed.get_rank(), torch.distributed.get_world_size())
                return result

            return init_process_group

        for module in (torch.distributed, torch.distributed.distributed_c10d):
            self._capture.patches.wrap(module, "init_process_group", joining)
            if is_virtual:
                self._capture.patches.wrap(module, "destroy_process_group", _draining)
        if is_virtual:
            c10d, patches = torch.distributed.distributed_c10d, self._capture.patches
            patches.wrap(c10d, "_new_process_group_helper", _without_time_limit)
            if hasattr(c10d, "_set_pg_timeout"):
                patches.wrap(c10d, "_set_pg_timeout", lambda original: lambda *args, **kwargs: None)
            for module in (torch.distributed, c10d):
                if hasattr(module, "split_group"):
                    patches.wrap(module, "split_group", _without_time_limit)
        library = ctypes.CDLL(None)
        if is_virtual and hasattr(library, "foretell_on_connection"):
            self._connections = Connections(self._capture, library)
            self._capture.before_end.append(lambda: library.foretell_drain(1))

    def _size_in_part(self) -> int:
        """The number of ranks, if not all of them run; else 0."""
        library = ctypes.CDLL(None)
        return int(library.foretell_size_in_part()) if hasattr(library, "foretell_size_in_part") else 0

    def _absent(self, torch: Any) -> Absent | None:
        if self._of_absent is None and self._size_in_part():
            self._of_absent = Absent(self._capture, torch, ctypes.CDLL(None))
            self._of_absent.install()
        return self._of_absent

    def _join(self, torch: Any, rank: int, world_size: int) -> None:
        if world_size < 2 or self._joined == (rank, world_size):
            return
        if self._joined is None:
            self._library = ctypes.CDLL(None)  # the preloaded virtual GPU
            self._library.foretell_agree.argtypes = [ctypes.c_uint64, ctypes.c_int]
            tell_where_this_rank_waits(self._capture, self._library, torch)
            self._capture.agree = self._agree
            self._capture.before_end.append(self._leave)
        self._joined = rank, world_size
        self._library.foretell_join(rank, world_size)
        self._capture.journal.write(
            "rank", rank=rank, world_size=world_size, local_rank=_number("LOCAL_RANK"),
            gpus_per_node=_number("LOCAL_WORLD_SIZE"),
        )  # fmt: skip

    def _leave(self) -> None:
        self._capture.journal.write("communicators", communicators=list(self._communicators()))
        is_error = self._end.has_raised and not self._capture.is_cut_short
        how = BY_AN_EXCEPTION if is_error else CUT_SHORT if self._capture.is_cut_short else TO_ITS_END
        self._library.foretell_leave(how)

    def _communicators(self) -> Iterator[dict[str, Any]]:
        """Oldest first."""
        world_size = self._joined[1] if self._joined else 1
        values = (ctypes.c_int64 * 4)()
        members, are_neighbours = (ctypes.c_int32 * world_size)(), (ctypes.c_bool * world_size)()
        found: list[dict[str, Any]] = []
        while self._library.foretell_communicator_use(len(found), values, members, are_neighbours, world_size):
            size, operations, size_bytes, communicator = values
            ranks = list(members[:size])
            known = ranks if size and ranks[0] >= 0 else []
            found.append(
                {
                    "size": size,
                    "kinds": [name for bit, name in enumerate(OPERATIONS) if operations >> bit & 1],
                    "bytes": size_bytes,
                    "channels": self._connections.num_channels(communicator % 2**64) if self._connections else 0,
                    "ranks": known,
                    "neighbours": [rank for rank, is_one in zip(known, are_neighbours, strict=False) if is_one],
                }
            )
        yield from reversed(found)

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


def _without_time_limit(original: Any) -> Any:
    """ProcessGroupNCCL's watchdog ends the process if it does not see a collective end in time. It learns of that late
    here, and how long a run takes says nothing about a card."""

    @wraps(original)
    def with_timeout(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "timeout": timedelta(days=30)})

    return with_timeout


NAMES = ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options", "device_id")
"""Of init_process_group, from torch 2.6 to 2.15."""


def by_name(args: tuple[Any, ...], kwargs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The arguments of init_process_group, without an address where the ranks would meet."""
    given = {**dict(zip(NAMES, args, strict=False)), **kwargs, **changes}
    given.pop("init_method", None)
    return given


def rank_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int]:
    """The rank and the number of ranks, as arguments of init_process_group and the environment say; None: not known
    before it has returned."""
    given = {**dict(zip(NAMES, args, strict=False)), **kwargs}  # -1 means: from elsewhere
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
