"""Notes what each DataLoader delivers: the shapes of a batch, and the samples it is made of.

Every DataLoader iterator, also under accelerate, Trainer and Lightning, passes `_BaseDataLoaderIter.__next__`. Only
shapes are looked at, so nothing is allocated. A sampler draws indices in `_next_index`, with workers some batches
ahead; batches come in the same order, unless the loader has `in_order=False`.

A process that has not used the GPU keeps its lines back: only some of them matter.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import wraps
from math import prod
from operator import index
from typing import Any

from ..capture import Capture, in_main_thread
from .delay import delay_ns
from .loading import WorkerTimes

MOST_SAMPLES = 64
"""Samples of a batch that are named."""
MOST_TENSORS = 64
MOST_BARE = 3
"""Batches that are loaded without hooks, for their time."""
MOST_PARTS = 4096
DEEPEST = 6

Tensor = tuple[str, str, tuple[int, ...]]
"""Name within the batch, dtype, shape."""


class Delivered:
    """One batch, as far as it is noted."""

    __slots__ = ("batch", "index", "loader", "num_elements", "samples", "tensors", "took_us", "worker_us")

    def __init__(self, batch: Any, loader: int, index: int, samples: Any, took_us: int | None) -> None:
        self.batch = batch
        self.loader = loader
        self.index = index
        """In its pass over the loader."""
        self.samples = samples
        self.took_us = took_us
        """To load it, without hooks and without the time in which others had the CPU."""
        self.worker_us: int | None = None
        """Of worker processes, for a batch."""
        self.tensors, self.num_elements = described(batch)


class _Pass:
    """One pass over a DataLoader."""

    __slots__ = ("drawn", "number", "sampler")

    def __init__(self) -> None:
        self.number: int | None = None
        self.sampler: Any = None
        """Whose indices `drawn` has; persistent workers get a new one for each epoch."""
        self.drawn: deque[Any] = deque()


class Batches:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._torch: Any = None
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self._num_passes = 0
        self._shapes: dict[tuple[Tensor, ...], int] = {}
        self._journal = _LateJournal(capture)
        self._workers = WorkerTimes(capture)
        self._num_bare = 0
        self._leaves_gpu_alone = False
        """Whether the batch before was loaded without it."""
        self.is_looking = False
        """Batches are looked at, but not handed to the script."""
        self.last: Delivered | None = None
        """Only while looking: it holds the batch itself."""

    def install(self, torch: Any) -> None:
        self._torch = torch
        iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
        self._capture.patches.wrap(iterator_class, "_next_index", self._noting_indices)
        self._capture.patches.wrap(iterator_class, "__next__", self._noting_batches)
        if self._capture.options.time:
            self._workers.install(torch)

    def cuda_starts(self) -> None:
        self._journal.open()

    def _noting_indices(self, original: Any) -> Any:
        @wraps(original)
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            now = self._passes.setdefault(iterator, _Pass())
            if now.sampler is not iterator._sampler_iter:
                now.sampler = iterator._sampler_iter
                now.drawn.clear()
            now.drawn.append(index)
            return index

        return next_index

    def _noting_batches(self, original: Any) -> Any:
        @wraps(original)
        def next_batch(iterator: Any) -> Any:
            if not self._capture.options.time:
                batch, took_us = original(iterator), None
            else:
                cpu = time.process_time_ns()
                batch, took_us = self._timed(original, iterator)
                self._capture.loading_ns += time.process_time_ns() - cpu
            self._capture.guarded("batches", lambda: self._note(iterator, batch, took_us))
            for call in self._capture.on_batch:
                call()
            return batch

        return next_batch

    def _timed(self, original: Any, iterator: Any) -> tuple[Any, int | None]:
        """A batch, and how long it took without hooks: after one that allocated nothing on the GPU, the next ones are
        loaded without the mode that keeps values."""
        if self._torch._C._autograd._profiler_enabled():
            return original(iterator), None
        if iterator._num_workers:
            cpu = time.thread_time_ns()  # without waiting for them
            return original(iterator), (time.thread_time_ns() - cpu) // 1000
        if self._num_bare >= MOST_BARE:
            return original(iterator), None
        is_bare = self._leaves_gpu_alone and in_main_thread()
        before = self._num_allocations()
        with self._capture.without_values() if is_bare else nullcontext():
            begin, delay, cpu = time.monotonic_ns(), delay_ns(), time.thread_time_ns()
            batch = original(iterator)
            undelayed = time.monotonic_ns() - begin - (delay_ns() - delay)
            took_us = max(undelayed, time.thread_time_ns() - cpu) // 1000
        self._leaves_gpu_alone = self._num_allocations() == before
        self._num_bare += is_bare
        return batch, took_us if is_bare and self._leaves_gpu_alone else None

    def _num_allocations(self) -> int:
        if not self._torch.cuda.is_initialized():
            return 0
        return int(self._torch.cuda.memory_stats()["allocation.all.allocated"])

    def _note(self, iterator: Any, batch: Any, took_us: int | None) -> None:
        if self._torch.utils.data.get_worker_info() is not None:
            return
        now = self._passes.setdefault(iterator, _Pass())
        place = iterator._num_yielded - 1
        if now.number is None or place == 0:
            now.number, self._num_passes = self._num_passes, self._num_passes + 1
            self._journal.write("pass", number=now.number, **_about(iterator))
        samples = now.drawn.popleft() if now.drawn else None
        has_ids = getattr(iterator, "_in_order", True) and iterator._dataset_kind == 0  # _DatasetKind.Map
        with self._torch._C.DisableTorchFunction():
            delivered = Delivered(batch, now.number, place, samples if has_ids else None, took_us)
        if iterator._num_workers and self._capture.options.time:
            delivered.worker_us = self._workers.typical_us()
        self.tell(delivered)
        if self.is_looking:
            self.last = delivered

    def tell(self, delivered: Delivered) -> None:
        """A line about a batch that the script gets now, or that is only looked at."""
        is_new = delivered.tensors not in self._shapes
        number = self._shapes.setdefault(delivered.tensors, len(self._shapes))
        ids = _ids(delivered.samples)
        self._journal.write(
            "batch",
            loader=delivered.loader,
            index=delivered.index,
            step=self._capture.num_steps,
            shape=number,
            num_elements=delivered.num_elements,
            **({"tensors": delivered.tensors} if is_new else {}),
            **({"samples": ids[:MOST_SAMPLES], "num_samples": len(ids)} if ids else {}),
            **({"is_trained": False} if self.is_looking else {}),
            **({} if delivered.took_us is None else {"took_us": delivered.took_us}),
            **({} if delivered.worker_us is None else {"worker_us": delivered.worker_us}),
        )


class _LateJournal:
    """Keeps lines back until it is opened."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._early: list[tuple[str, dict[str, Any]]] | None = []

    def open(self) -> None:
        early, self._early = self._early, None
        for kind, values in early or ():
            self._capture.journal.write(kind, **values)

    def write(self, kind: str, **values: Any) -> None:
        if self._early is None:
            self._capture.journal.write(kind, **values)
        else:
            self._early.append((kind, values))


def described(batch: Any) -> tuple[tuple[Tensor, ...], int]:
    """The tensors and arrays of a batch, and how many elements they have; of a huge batch, the first ones."""
    found: list[Tensor] = []
    num_elements = num_parts = 0
    pending: list[tuple[str, Any, int]] = [("", batch, 0)]
    while pending and num_parts < MOST_PARTS:
        name, part, depth = pending.pop()
        num_parts += 1
        shape = getattr(part, "shape", None)
        if shape is not None and hasattr(part, "dtype"):
            dims = tuple(int(size) for size in shape)
            num_elements += prod(dims)
            if len(found) < MOST_TENSORS:
                found.append((name, str(part.dtype).removeprefix("torch."), dims))
        elif depth < DEEPEST:
            inner = [(f"{name}.{key}" if name else str(key), each, depth + 1) for key, each in _parts(part)]
            pending += reversed(inner)
    return tuple(found), num_elements


def _parts(whole: Any) -> Iterable[tuple[Any, Any]]:
    """What a container holds, by name or number: dicts and their like (BatchEncoding), sequences, objects with
    attributes (data classes, named tuples, graphs)."""
    if isinstance(whole, Mapping):
        return list(whole.items())[:MOST_PARTS]
    if isinstance(whole, tuple) and hasattr(whole, "_fields"):
        return list(zip(whole._fields, whole, strict=True))
    if isinstance(whole, (list, tuple)):
        is_plain = bool(whole) and isinstance(whole[0], (str, bytes, int, float))
        return () if is_plain else list(enumerate(whole[:MOST_PARTS]))
    if isinstance(whole, (str, bytes, int, float, bool, type(None), type)) or callable(whole):
        return ()
    return list(getattr(whole, "__dict__", {}).items())[:MOST_PARTS]


def is_on_gpu(batch: Any) -> bool:
    """Whether a tensor of the batch is; looks at the first ones."""
    pending, num_parts = [batch], 0
    while pending and num_parts < MOST_PARTS:
        part = pending.pop()
        num_parts += 1
        if getattr(part, "is_cuda", False) is True:
            return True
        if not hasattr(part, "shape"):
            pending += [each for _, each in _parts(part)]
    return False


def _about(iterator: Any) -> dict[str, Any]:
    """The values of a `pass` line."""
    sampler = getattr(iterator._index_sampler, "sampler", None)
    batch_size = getattr(iterator._index_sampler, "batch_size", None)
    return {
        "length": length_of(iterator),
        "num_samples": length_of(iterator._dataset),
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "sampler": type(iterator._index_sampler if sampler is None else sampler).__name__,
        "num_workers": iterator._num_workers,
    }


def length_of(whole: Any) -> int | None:
    """Of a DataLoader's iterator or a data set. A data set may ask a tensor, which modes of the script must not see."""
    import torch

    try:
        with torch._C.DisableTorchFunction():
            return len(whole)
    except Exception:  # an iterable dataset has no length, or one that raises
        return None


def _ids(samples: Any) -> list[int]:
    """The indices that the sampler drew; none if it drew something else."""
    try:
        return [index(each) for each in (samples if isinstance(samples, (list, tuple)) else [samples])]
    except TypeError:
        return []
