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

_AS_BEFORE = 2
"""Of a byte: it stays known, or unknown (native/memory/known.c)."""
_MAX_WITH_GAPS = 1 << 17
"""Bytes; of a larger view with gaps, all the bytes from its first to its last are known, or none."""

_MAX_MOVED = 1 << 22
"""Bytes; of a larger tensor nothing is known after it was resized."""


class DeviceBytes:
    def __init__(self, torch: Any) -> None:
        library = ctypes.CDLL(None)  # the preloaded virtual GPU
        address, size = ctypes.c_size_t, ctypes.c_size_t
        self._know = library.foretell_know
        self._forget = library.foretell_forget
        self._is_known = library.foretell_is_known
        self.abandon = library.foretell_abandon
        self._publish = library.foretell_publish
        self._is_any_known = library.foretell_is_any_known
        self._is_confirmed = library.foretell_is_confirmed
        asked = (self._is_known, self._is_any_known, self._is_confirmed)
        for function in (*asked, self._know, self._forget, self.abandon, self._publish):
            function.argtypes = [address, size]
        self._know.restype = self._forget.restype = self.abandon.restype = self._publish.restype = None
        self._read_known = library.foretell_read_known
        self._write_known = library.foretell_write_known
        for function in (self._read_known, self._write_known):
            function.argtypes = [address, size, address]
            function.restype = None
        self._num_shared = library.foretell_num_shared
        self.real_copies = library.foretell_real_copies
        self.all_copies_are_real = library.foretell_all_copies_are_real
        self.all_copies_are_real.restype = None
        self.answer_reads = library.foretell_answer_reads
        self.answer_reads.argtypes = [ctypes.c_int64, ctypes.c_bool]
        self.answer_entries = library.foretell_answer_entries
        self.answer_entries.argtypes = [ctypes.c_int64, ctypes.c_bool]
        self.answer_reads.restype = self.answer_entries.restype = self.real_copies.restype = None
        self._torch = torch
        self._frombuffer = torch.frombuffer
        self._empty_strided = torch.empty_strided
        self._watched: dict[int, tuple[Any, tuple[int, int]]] = {}
        """Storages that hold known bytes, and their extents."""
        self._starts: set[int] = set()
        """Start of every range that was ever known: a cheap way to rule out known bytes."""

    def is_known(self, tensor: Any) -> bool:
        if not tensor.numel() or self._is_known(*_extent(tensor)):
            return True
        if not _is_small_with_gaps(tensor) or not self._is_any_known(*_extent(tensor)):
            return False
        return bool(self.known_elements(tensor).all())

    def forget(self, tensor: Any) -> None:
        if not tensor.numel() or (not self._num_shared() and not self._is_any_known(*_extent(tensor))):
            return  # memory that is shared may be known to another process
        if _is_small_with_gaps(tensor):
            self.know_elements(tensor, self._torch.zeros(tensor.shape, dtype=self._torch.bool, device="cpu"))
        else:
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
        if length > tensor.nbytes:
            if self._is_confirmed(start, length):  # a view of what is known for good: nothing to write down
                self._watch(tensor, start)
            elif length <= _MAX_WITH_GAPS:
                self.know_elements(tensor, self._torch.ones(tensor.shape, dtype=self._torch.bool, device="cpu"))
            elif not self._is_known(start, length):
                self._forget(start, length)
            return
        self._know(start, length)
        self._watch(tensor, start)

    def known_elements(self, tensor: Any) -> Any:
        """A mask on the host: which elements are known."""
        if not tensor.numel():
            return self._torch.ones(tensor.shape, dtype=self._torch.bool, device="cpu")
        known = self._by_element(self._known_bytes(*_extent(tensor)), tensor)
        return known.as_strided(tensor.size(), tensor.stride())

    def _known_bytes(self, start: int, length: int) -> Any:
        known = self._torch.empty(length, dtype=self._torch.uint8, device="cpu")
        self._read_known(start, length, known.data_ptr())
        return known

    def _by_element(self, known: Any, tensor: Any) -> Any:
        return known.view(self._torch.bool).view(-1, tensor.element_size()).all(1)

    def _become_known(self, start: int, becomes: Any) -> None:
        self._write_known(start, becomes.numel(), becomes.data_ptr())

    def know_elements(self, tensor: Any, known: Any) -> None:
        """The opposite of `known_elements`; what lies between the elements stays as it is."""
        start, length = _extent(tensor)
        size = tensor.element_size()
        becomes = self._torch.full((length // size, size), _AS_BEFORE, dtype=self._torch.uint8, device="cpu")
        first_bytes = becomes[:, 0].as_strided(tensor.size(), [stride * size for stride in tensor.stride()])
        first_bytes.copy_(known)
        becomes.copy_(becomes[:, :1].clone())
        self._become_known(start, becomes)
        self._watch(tensor, start)

    def keep_known(self, tensor: Any) -> None:
        """What is known until the next launch is known from now on; of integers also if it is only a part."""
        if self.is_known(tensor):
            self.know(tensor)
        elif not tensor.dtype.is_floating_point and self._is_any_known(*_extent(tensor)):
            self.know_elements(tensor, self.known_elements(tensor))

    def _watch(self, tensor: Any, start: int) -> None:
        """PyTorch recycles the block silently; known bytes would be stale for its next owner."""
        self._starts.add(start)
        storage = tensor.untyped_storage()
        key, extent = storage._cdata, (storage.data_ptr(), storage.nbytes())
        watched = self._watched.get(key)
        if watched is None:
            self._watched[key] = weakref.ref(storage, functools.partial(self._storage_died, key)), extent
        elif watched[1] != extent:  # it was resized
            self._watched[key] = watched[0], extent

    @contextlib.contextmanager
    def filled(self, tensor: Any, number: float) -> Iterator[None]:
        """Let reads find this number in place of every unknown element."""
        start, length = _extent(tensor)
        known = self._known_bytes(start, length)
        unknown = ~self._by_element(known, tensor)
        self._frombuffer((ctypes.c_char * length).from_address(start), dtype=tensor.dtype).masked_fill_(unknown, number)
        self._become_known(start, known + 1)  # 0 becomes known, 1 stays as before
        try:
            yield
        finally:
            self._become_known(start, known * _AS_BEFORE)

    def moved(self, tensor: Any, before: tuple[int, int]) -> None:
        """A tensor was resized. If its storage has new memory, the virtual GPU has copied the old bytes there; of the
        old memory (address, length) nothing is known now."""
        storage = tensor.untyped_storage()
        start, length = storage.data_ptr(), min(before[1], storage.nbytes())
        if start == before[0]:
            return
        self.abandon(*before)
        if 0 < length <= _MAX_MOVED:
            known = self._known_bytes(start, length)
            self._become_known(start, _AS_BEFORE - known)  # for good, not until the next launch
            self._watch(tensor, start)

    def _storage_died(self, key: int, _: object) -> None:
        _, extent = self._watched.pop(key, (None, (0, 0)))
        self.abandon(*extent)

    def publish(self, storage: Any) -> None:
        """Share with another process what is known of a storage that is sent to it."""
        self._publish(storage.data_ptr(), storage.nbytes())

    def alias(self, tensor: Any) -> Any:
        """A CPU tensor over the same bytes, with the same shape and strides."""
        if not tensor.numel():
            return self._empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
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


def _is_small_with_gaps(tensor: Any) -> bool:
    """Whether other elements lie between those of a view."""
    return not tensor.is_contiguous() and tensor.nbytes < _extent(tensor)[1] <= _MAX_WITH_GAPS


def _extent(tensor: Any) -> tuple[int, int]:
    start = tensor.data_ptr()
    if not start:
        raise ValueError("a tensor without memory")
    if tensor.is_contiguous():
        return start, tensor.nbytes
    elements = 1
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        elements += (size - 1) * stride
    return start, elements * tensor.element_size()
