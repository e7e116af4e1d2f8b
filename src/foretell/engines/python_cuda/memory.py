"""The card's memory: PyTorch's caching allocator in Python, and tensors whose storages are its blocks.

Tensors are made through DLPack, the only way to hand torch a storage with a custom deleter: plain tensors of the device
`cuda`, backed by addresses alone, freed the moment torch releases them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Any

from ...inside.watch.modules import module_of
from ...inside.watch.oom import format_size
from ...protocol.marks import MODULE_FRAME

OURS = __file__.rsplit("memory.py", 1)[0]
_CUDA = 2  # DLDeviceType


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _guarded(deleter: Any) -> int | None:
    """Address of the deleter for torch. It may run with an exception pending, which Python code would lose; foretell's
    native library, if loaded, sets the exception aside (native/core/python_errors.c)."""
    library = ctypes.CDLL(None)
    address = ctypes.cast(deleter, ctypes.c_void_p).value
    if hasattr(library, "foretell_on_let_go"):
        library.foretell_on_let_go.argtypes = [ctypes.c_void_p]
        library.foretell_on_let_go.restype = ctypes.c_bool
        if library.foretell_on_let_go(address):
            return ctypes.cast(library.foretell_let_go, ctypes.c_void_p).value
    return address


def address_of(tensor: Any) -> int:
    """Address of a tensor's storage. Not `untyped_storage()`: autograd considers a storage that Python has seen shared,
    and stops adding gradients in place."""
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.dtype.itemsize)


class Where(threading.local):
    """State of a thread."""

    operator: Any = None
    """The outermost operator; those it calls internally do not count."""
    kernel: str | None = None
    """The implementation the operator chose, if it has several."""
    kernel_reason: str | None = None
    """Why it did not choose the usual one."""
    rule: str | None = None
    """Reason of an allocation that is not the operator's result."""
    stream = 0


class Memory:
    """Memory of one card. Every change holds a lock: a backward pass runs in its own thread."""

    def __init__(self, torch: Any, allocator: Any, capture: Any) -> None:
        self._torch = torch
        self._capture = capture
        self.allocator = allocator
        self.where = Where()
        self.history: list[dict[str, Any]] | None = None
        self.num_allocations = 0
        self.on_oom: list[Any] = []
        self.on_alloc: Any = None
        self.host: dict[int, Any] = {}
        """Bytes of blocks with known contents, by address."""
        self.known: dict[int, Any] = {}
        """Which of these bytes are known, of blocks of which not all are."""
        self._lock = threading.RLock()
        self._is_busy = False
        self._late: list[Any] = []
        """Blocks released by Python's garbage collector in the middle of another operation."""
        self._live: dict[int, tuple[Any, Any, Any]] = {}
        """By address of the struct torch holds: the struct, its sizes and strides, and the block."""
        self._blocks: dict[int, Any] = {}
        self._frames: dict[tuple[Any, Any], dict[str, Any]] = {}
        self._origins: dict[tuple[Any, ...], tuple[str | None, ...]] = {}
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._let_go)
        self._deleter_address = _guarded(self._deleter)
        self._types = _dlpack_types(torch)
        self._from_dlpack = torch._C._from_dlpack
        allocator.observe(self._observe)

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def empty(self, size: Any, stride: Any, dtype: Any) -> Any:
        code, bits = self._types.get(dtype, (1, 8 * dtype.itemsize))
        elements = 1
        for extent, step in zip(size, stride, strict=True):
            if extent == 0:
                elements = 0
                break
            elements += (extent - 1) * step
        num_bytes = elements * dtype.itemsize
        block = self.malloc(num_bytes) if num_bytes else None
        rank = len(size)
        numbers = (ctypes.c_int64 * (2 * rank))(*size, *stride)
        managed = _DLManagedTensor()
        tensor = managed.tensor
        tensor.data = block.address if block is not None else None
        tensor.device_type = _CUDA
        tensor.ndim = rank
        tensor.code, tensor.bits, tensor.lanes = code, bits, 1
        at = ctypes.addressof(numbers)
        tensor.shape, tensor.strides = at, at + 8 * rank
        managed.deleter = self._deleter_address
        address = ctypes.addressof(managed)
        self._live[address] = (managed, numbers, block)
        made = self._from_dlpack(_new_capsule(address, b"dltensor", None))
        return made if made.dtype is dtype else made.view(dtype)

    def block_of(self, tensor: Any) -> Any:
        return self._blocks.get(address_of(tensor))

    def _let_go(self, address: int, is_finalizing: Any = sys.is_finalizing) -> None:
        if is_finalizing():  # Python is shutting down; frees no longer count
            return
        _, _, block = self._live.pop(address)
        if block is not None:
            self.free(block)

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def malloc(self, num_bytes: int) -> Any:
        return self._alone(self._malloc, num_bytes)

    def empty_cache(self) -> None:
        self._alone(self.allocator.empty_cache)

    def _alone(self, call: Any, *args: Any) -> Any:
        with self._lock:
            self._is_busy = True
            try:
                return call(*args)
            finally:
                self._is_busy = False
                self._free_late_ones()

    def _malloc(self, num_bytes: int) -> Any:
        self.num_allocations += 1
        stream = self.where.stream
        try:
            block = self.allocator.malloc(num_bytes, stream)
        except self.allocator.OutOfMemory as error:
            self._out_of_memory(num_bytes, error.requested_bytes)
        self._blocks[block.address] = block
        if self.on_alloc is not None:
            self.on_alloc(num_bytes)
        if self.history is not None:
            self._log("alloc", block.address, num_bytes, stream, *self._told())
        return block

    def free(self, block: Any) -> None:
        with self._lock:
            self._late.append(block)
            if not self._is_busy:
                self._free_late_ones()

    def _free_late_ones(self) -> None:
        while self._late:
            block = self._late.pop(0)
            address = block.address
            del self._blocks[address]
            self.host.pop(address, None)
            self.known.pop(address, None)
            if self.history is not None:
                self._log("free_requested", address, block.requested, block.stream)
            self._is_busy = True
            self.allocator.free(block)
            self._is_busy = False

    def start_again(self) -> None:
        """Reset, as if nothing had ever been allocated."""
        self.empty_cache()
        self.allocator.reset_peaks()
        self.num_allocations = 0

    def record_stream(self, tensor: Any, stream: int) -> None:
        block = self.block_of(tensor)
        if block is not None:
            with self._lock:
                self.allocator.record_stream(block, stream)

    def _out_of_memory(self, num_bytes: int, segment_bytes: int) -> None:
        device = self.allocator.device
        free = max(0, device.capacity_bytes - device.used_bytes)
        if self.history is not None:
            self._log("oom", free, num_bytes, self.where.stream, *self._told())
        for tell in self.on_oom:
            tell(0, num_bytes, device.total_bytes, free)
        raise self._torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {format_size(segment_bytes)}. GPU 0 has a total capacity of "
            f"{format_size(device.total_bytes)} of which {format_size(free)} is free. Of the allocated memory "
            f"{format_size(self.allocator.allocated_bytes)} is allocated by PyTorch, and "
            f"{format_size(self.allocator.reserved_bytes - self.allocator.allocated_bytes)} is reserved by PyTorch but "
            "unallocated."
        )

    # ---- history -----------------------------------------------------------------------------------------------------

    def _observe(self, action: str, address: int, size: int, stream: int) -> None:
        if self.history is not None:
            self._log(action, address, size, stream)

    def _log(
        self,
        action: str,
        address: int,
        size: int,
        stream: int,
        frames: Any = (),
        origin: tuple[str | None, ...] | None = None,
    ) -> None:
        assert self.history is not None
        self.history.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time.time_ns() // 1000,
                "frames": frames,
                "origin": origin,
            }
        )

    def _told(self) -> tuple[list[dict[str, Any]], tuple[str | None, ...]]:
        """The Python frames as PyTorch records them, innermost first, and the origin (protocol.history.ORIGIN)."""
        found = []
        frame: Any = sys._getframe(4)
        frames = self._frames
        path: str | None = None
        while frame is not None:
            code = frame.f_code
            if code.co_filename == MODULE_FRAME:
                path = path or code.co_name
            elif not code.co_filename.startswith(OURS):
                key = (code, frame.f_lineno)
                known = frames.get(key)
                if known is None:
                    known = frames[key] = {
                        "filename": code.co_filename,
                        "line": frame.f_lineno,
                        "name": code.co_name,
                    }
                found.append(known)
            frame = frame.f_back
        node = self._torch._C._current_autograd_node() if path is None else None
        if node is not None:
            path = module_of(node)
        where = self.where
        told = (where.operator, where.kernel, where.kernel_reason, path, where.rule, self._capture.phase)
        origin = self._origins.get(told)
        if origin is None:
            origin = self._origins[told] = tuple(None if each is None else str(each) for each in told)
        return found, origin


def _dlpack_types(torch: Any) -> dict[Any, tuple[int, int]]:
    codes = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
    types = {torch.bool: (6, 8)}
    for kind, code in codes.items():
        for bits in (8, 16, 32, 64, 128):
            dtype = getattr(torch, f"{kind}{bits}", None)
            if isinstance(dtype, torch.dtype):
                types[dtype] = (code, bits)
    return types
