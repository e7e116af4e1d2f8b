"""Interface to the virtual GPU's memory: which device bytes are known, and CPU tensors over the same addresses.

The virtual GPU's device memory is mapped into the process, so a CPU tensor over a device address costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any


class DeviceBytes:
    def __init__(self, torch: Any) -> None:
        library = ctypes.CDLL(None)  # the preloaded virtual GPU
        address, size = ctypes.c_size_t, ctypes.c_size_t
        self._know = library.foretell_know
        self._forget = library.foretell_forget
        self._is_known = library.foretell_is_known
        self._abandon = library.foretell_abandon
        self._publish = library.foretell_publish
        for function in (self._know, self._forget, self._is_known, self._abandon, self._publish):
            function.argtypes = [address, size]
        self._know.restype = self._forget.restype = self._abandon.restype = self._publish.restype = None
        self._num_shared = library.foretell_num_shared
        self.real_copies = library.foretell_real_copies
        self.answer_reads = library.foretell_answer_reads
        self.answer_reads.argtypes = [ctypes.c_int64, ctypes.c_bool]
        self.answer_entries = library.foretell_answer_entries
        self.answer_entries.argtypes = [ctypes.c_int64, ctypes.c_bool]
        self.answer_reads.restype = self.answer_entries.restype = self.real_copies.restype = None
        self._frombuffer = torch.frombuffer
        self._empty_strided = torch.empty_strided
        self._watched: dict[int, Any] = {}
        self._starts: set[int] = set()
        """Start of every range that was ever known: a cheap way to rule out known bytes."""

    def is_known(self, tensor: Any) -> bool:
        return not tensor.numel() or bool(self._is_known(*_extent(tensor)))

    def forget(self, tensor: Any) -> None:
        if tensor.numel():
            self._forget(*_extent(tensor))

    def forget_whole(self, tensors: Iterable[Any]) -> None:
        """Forget tensors that are not views and were mostly never known (the optimizer's lists)."""
        is_anything_shared = self._num_shared() > 0  # another process may have made bytes known
        for tensor in tensors:
            if is_anything_shared or tensor.data_ptr() in self._starts:
                self.forget(tensor)

    def know(self, tensor: Any) -> None:
        """Mark the device's contents as correct, until they are forgotten or the storage dies."""
        if not tensor.numel():
            return
        start, length = _extent(tensor)
        self._know(start, length)
        self._starts.add(start)
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._watched:
            # PyTorch recycles the block silently; known bytes would be stale for its next owner.
            died = functools.partial(self._storage_died, key, (storage.data_ptr(), storage.nbytes()))
            self._watched[key] = weakref.ref(storage, died)

    def _storage_died(self, key: int, extent: tuple[int, int], _: object) -> None:
        self._watched.pop(key, None)
        self._abandon(*extent)

    def publish(self, storage: Any) -> None:
        """Share with another process what is known of a storage that is sent to it."""
        self._publish(storage.data_ptr(), storage.nbytes())

    def alias(self, tensor: Any) -> Any:
        """A CPU tensor over the same bytes, with the same shape and strides."""
        if not tensor.numel():
            return self._empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        start, length = _extent(tensor)
        view = (ctypes.c_char * length).from_address(start)
        return self._frombuffer(view, dtype=tensor.dtype).as_strided(tensor.size(), tensor.stride())


class Answers(threading.local):
    """Answers to reads of unknown bytes, per thread. They nest: in a backward pass, a recomputed module needs its own
    while the step that needs it is running."""

    def __init__(self, device: DeviceBytes) -> None:
        self._answer_reads = device.answer_reads
        self._answers: list[int] = []

    def push(self, answer: int) -> None:
        self._answers.append(answer)
        self._answer_reads(answer, True)

    def pop(self) -> None:
        self._answers.pop()
        self._answer_reads(self._answers[-1] if self._answers else 0, bool(self._answers))

    @contextlib.contextmanager
    def given(self, answer: int) -> Iterator[None]:
        """Use this answer for counts and conditions that an operator reads back in this block."""
        self.push(answer)
        try:
            yield
        finally:
            self.pop()

    def give_in_backward(self, answer: int, out: Any) -> None:
        """Answer in the backward too: indexing by a mask counts it again there, in a thread and at a depth the mode
        cannot see."""
        node = getattr(out, "grad_fn", None)
        if node is not None:
            node.register_prehook(lambda _: self.push(answer))
            node.register_hook(lambda *_: self.pop())


def _extent(tensor: Any) -> tuple[int, int]:
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.nbytes
    elements = 1
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        elements += (size - 1) * stride
    return tensor.data_ptr(), elements * tensor.element_size()
