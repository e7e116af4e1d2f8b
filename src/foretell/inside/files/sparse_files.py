"""Checkpoints as sparse files: pages that do not exist in memory are not written to disk either.

On a virtual GPU, the weights of a 7B model and its optimizer are 80 GB of nothing. Copied to the host they have no
pages; a file with holes in their place has the right size, is written at once and takes no disk space.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

from . import pages
from . import real_files as real

WORTH_LOOKING = 1 << 20


class SparseFile:
    """The part of a binary file's interface that torch.save uses."""

    def __init__(self, path: str) -> None:
        self._descriptor = real.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._position = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) < WORTH_LOOKING:
            self._write_at(self._position, view)
        else:
            self.write_memory(_address(data), len(view), advance=False)
        self._position += len(view)
        return len(view)

    def write_memory(self, address: int, num_bytes: int, *, advance: bool = True) -> None:
        ranges = pages.existing_ranges(address, num_bytes)
        for offset, length in [(0, num_bytes)] if ranges is None else ranges:
            part = memoryview((ctypes.c_char * length).from_address(address + offset)).cast("B")
            self._write_at(self._position + offset, part)
        if advance:
            self._position += num_bytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (self._position if whence == os.SEEK_CUR else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        os.ftruncate(self._descriptor, max(self._position, os.fstat(self._descriptor).st_size))

    def close(self) -> None:
        self.flush()
        real.close(self._descriptor)

    def __enter__(self) -> SparseFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_at(self, position: int, view: memoryview) -> None:
        while view:
            num_written = os.pwrite(self._descriptor, view, position)
            view, position = view[num_written:], position + num_written


def save_safetensors(specifications: dict[str, Any], path: str, metadata: dict[str, str] | None) -> bool:
    """Write the arguments of safetensors.serialize_file (names -> TensorSpec); False if that is impossible.

    The format: the length of the header in 8 bytes, the header in JSON, the tensors one after the other.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    # safetensors' order: widest types first, so that each is aligned.
    ordered = sorted(specifications.items(), key=lambda item: (-_width(item[1]), item[0]))
    for name, spec in ordered:
        if not isinstance(getattr(spec, "dtype", None), str) or not hasattr(spec, "data_ptr"):
            return False  # before 0.6, bytes instead of addresses
        offsets = [end, end + spec.data_len]
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        end += spec.data_len
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with SparseFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, spec in ordered:
            if spec.data_len:
                file.write_memory(spec.data_ptr, spec.data_len)
    return True


def _width(spec: Any) -> int:
    num_elements = 1
    for size in getattr(spec, "shape", ()):
        num_elements *= size
    return getattr(spec, "data_len", 0) // num_elements if num_elements else 0


class _Buffer(ctypes.Structure):
    """Python's Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _address(data: Any) -> int:
    """Address of a buffer's bytes; ctypes alone gives it only for writable buffers."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(buffer), 0)
    address = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    assert address is not None
    return int(address)
