"""How long the worker processes of DataLoaders take for a batch.

A worker is forked from the script's process and leaves no journal, so it writes into memory that both share. One that
is started anew (spawn, forkserver) is not measured.
"""

from __future__ import annotations

import mmap
import struct
import time
from functools import wraps
from typing import Any

from ..capture import Capture
from .delay import delay_ns

NUM_PLACES = 64
_NUMBER = struct.Struct("q")


class WorkerTimes:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._torch: Any = None
        self._shared: mmap.mmap | None = None
        self._num_batches = 0

    def install(self, torch: Any) -> None:
        self._torch = torch
        self._shared = mmap.mmap(-1, NUM_PLACES * _NUMBER.size)
        for fetcher in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            self._capture.patches.wrap(getattr(torch.utils.data._utils.fetch, fetcher), "fetch", self._timing)

    def typical_us(self) -> int | None:
        """The lower quartile: others may have had the CPU meanwhile."""
        if self._shared is None:
            return None
        found = sorted(each for (each,) in _NUMBER.iter_unpack(self._shared[:]) if each)
        return found[len(found) // 4] // 1000 if found else None

    def _timing(self, original: Any) -> Any:
        @wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            worker = self._torch.utils.data.get_worker_info()
            if worker is None:
                return original(fetcher, index)
            with self._capture.without_values():
                begin, delay, cpu = time.monotonic_ns(), delay_ns(), time.thread_time_ns()
                batch = original(fetcher, index)
                undelayed = time.monotonic_ns() - begin - (delay_ns() - delay)
                took = max(undelayed, time.thread_time_ns() - cpu)
            self._num_batches += 1
            if self._shared is not None and self._num_batches > 1:  # the first one warms up
                # Workers that share a place overwrite each other, which does no harm.
                at = (self._num_batches * worker.num_workers + worker.id) % NUM_PLACES
                _NUMBER.pack_into(self._shared, at * _NUMBER.size, took)
            return batch

        return fetch
