"""Tells the virtual NCCL how much memory each call takes that connects GPUs (rules/nccl.py)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ...rules import nccl
from ..capture import Capture

OPERATIONS = (
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all", "gather", "send", "recv",
)  # fmt: skip
"""In the order of protocol/native_log.py."""
_CREATED = -1
_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int32), ctypes.c_int,
    ctypes.c_int, ctypes.c_int64,
)  # fmt: skip


class Connections:
    def __init__(self, capture: Capture, library: Any) -> None:
        self._capture = capture
        self._given_bytes = capture.options.nccl_bytes
        self._is_given_taken = False
        self._fabric = nccl.described(_capability(), capture.options.interconnect or "")
        self._version = _version(library)
        self._buffers: dict[int, nccl.Buffers] = {}
        """By the number of the communicator."""
        self._callback = _Callback(self._called)
        library.foretell_on_connection(self._callback)

    def num_channels(self, communicator: int) -> int:
        found = self._buffers.get(communicator)
        return 0 if found is None else found.num_channels

    def _called(
        self, communicator: int, num_ranks: int, rank: int, members: Any, operation: int, peer: int, num_bytes: int
    ) -> int:
        """Bytes that the call takes."""
        try:
            machines = [each // _per_node(num_ranks) for each in (members[:num_ranks] if members else range(num_ranks))]
            if operation == _CREATED:
                local = [number for number, machine in enumerate(machines) if machine == machines[rank]]
                found = self._buffers[communicator] = nccl.Buffers(
                    self._fabric, version=self._version, num_ranks=num_ranks, num_local=len(local),
                    local_rank=local.index(rank), variables=os.environ,
                )  # fmt: skip
                size = found.created()
            else:
                found, is_local = self._buffers[communicator], machines[peer] == machines[rank]
                name = OPERATIONS[operation]
                if name == "send":
                    size = found.sent(peer, is_local=is_local)
                elif name == "recv":
                    size = found.received(peer, is_local=is_local)
                else:
                    size = found.collective(name, num_bytes)
            return size if self._given_bytes is None else self._given(num_ranks)
        except Exception as error:  # ctypes would print it, and return anything
            self._capture.hook_failed("NCCL's buffers", error)
            return 0

    def _given(self, num_ranks: int) -> int:
        """`--nccl`: all of it as soon as ranks can be connected."""
        if self._is_given_taken or num_ranks == 1:
            return 0
        self._is_given_taken = True
        return self._given_bytes or 0


def _per_node(num_ranks: int) -> int:
    names = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
    words = [os.environ.get(name, "") for name in names]
    return next((int(word) for word in words if word.isdecimal() and int(word)), num_ranks)


def _capability() -> tuple[int, int]:
    described = dict(item.split("=", 1) for item in os.environ.get("FORETELL_DEVICE", "").split(";") if "=" in item)
    return int(described.get("major", 8)), int(described.get("minor", 0))


def _version(library: Any) -> tuple[int, int]:
    """`22105` is 2.21."""
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    return number.value // 10000, number.value // 100 % 100
