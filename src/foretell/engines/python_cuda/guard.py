"""Enables tensors of the device type `cuda` in a torch without CUDA, or without a card.

torch asks two C++ objects about CUDA: a device guard (which device and stream are current) and the hooks (is there
CUDA, is there cuDNN). In a build without CUDA the guard is missing and the hooks deny everything. torch has a fake
guard, made for tracing without a card; the hooks get a function table in which a few entries answer yes. Both are
reached with ctypes. The positions in that table are read from torch's own headers.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

CUDA = 1  # c10::DeviceType
CUDNN_VERSION = 91900
"""There is no cuDNN; torch only asks which convolutions and norms it supports."""
_NUM_DEVICE_TYPES = 32
_HEADERS = ("AcceleratorHooksInterface.h", "CUDAHooksInterface.h")
_YES = (
    "init", "isBuilt", "isAvailable", "hasCUDA", "hasCuDNN", "hasCUDART", "hasCuBLASLt", "compiledWithCuDNN",
    "supportsDilatedConvolutionWithCuDNN", "supportsDepthwiseConvolutionWithCuDNN",
    "supportsBFloat16ConvolutionWithCuDNNv8", "supportsBFloat16RNNWithCuDNN",
)  # fmt: skip
_NO = ("hasPrimaryContext", "isPinnedPtr", "hasMAGMA", "hasROCM")
_NUMBERS = {
    "versionCuDNN": CUDNN_VERSION, "versionRuntimeCuDNN": CUDNN_VERSION, "versionCompiledCuDNN": CUDNN_VERSION,
    "versionCUDART": 13020, "deviceCount": 1, "getNumGPUs": 1, "getCurrentDevice": 0, "current_device": 0,
}  # fmt: skip


class DoesNotFitError(Exception):
    """This build of torch has an unknown layout."""


def install(torch: Any) -> list[Any]:
    """Install guard and hooks. Returns objects that C++ points to: keep them for the life of the process."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    try:
        return [*_put_guard(torch, ctypes.CDLL(os.path.join(folder, "libc10.so"))), *_put_hooks(torch, folder)]
    except (OSError, AttributeError, KeyError, ValueError) as error:
        raise DoesNotFitError(f"{type(error).__name__}: {error}") from error


def _put_guard(torch: Any, c10: Any) -> list[Any]:
    kept: list[Any] = []
    guards = (ctypes.c_void_p * _NUM_DEVICE_TYPES).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    if not guards[CUDA]:
        # torch replaces a guard that reports no device with the fake one; with no guard at all it does nothing.
        returns_zero = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(lambda this: 0)
        functions = (ctypes.c_void_p * 64)(*[ctypes.cast(returns_zero, ctypes.c_void_p).value] * 64)
        guard = (ctypes.c_void_p * 4)(ctypes.addressof(functions), 0, 0, 0)
        kept += [returns_zero, functions, guard]
        guards[CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()
    return kept


def _put_hooks(torch: Any, folder: str) -> list[Any]:
    get = ctypes.CDLL(os.path.join(folder, "libtorch_cpu.so"))._ZN2at6detail12getCUDAHooksEv
    get.restype = ctypes.c_void_p
    table_pointer = ctypes.c_void_p.from_address(get())
    assert table_pointer.value is not None
    slots = _slots(os.path.join(os.path.dirname(torch.__file__), "include", "ATen", "detail"))
    length = len(slots) + 2  # before the functions: an offset and the type
    old = (ctypes.c_void_p * length).from_address(table_pointer.value - 16)
    new = (ctypes.c_void_p * length)(*old)
    kept: list[Any] = [new]
    where = {name: number for number, name in reversed(list(enumerate(slots)))}

    def put(names: Any, function: Any) -> None:
        kept.append(function)
        for name in names:
            if name in where:
                new[2 + where[name]] = ctypes.cast(function, ctypes.c_void_p).value

    number = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)
    put(_YES, number(lambda this: 1))
    put(_NO, number(lambda this: 0))
    for name, value in _NUMBERS.items():
        put([name], number(lambda this, value=value: value))
    put(["batchnormMinEpsilonCuDNN"], ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)(lambda this: 0.0))
    # Pinned memory is host memory, so the host's allocator serves.
    put(["getPinnedMemoryAllocator"], ctypes.CDLL(os.path.join(folder, "libc10.so"))._ZN3c1015GetCPUAllocatorEv)
    for name in ("isBuilt", "hasPrimaryContext", "compiledWithCuDNN"):
        where[name]  # required: a KeyError names the missing one
    table_pointer.value = ctypes.addressof(new) + 16
    return kept


def _slots(folder: str) -> list[str]:
    """Virtual functions in table order; a destructor takes two slots (Itanium C++ ABI)."""
    names = []
    for header in _HEADERS:
        with open(os.path.join(folder, header)) as file:
            source = re.sub(r"//[^\n]*", "", file.read())
        for match in re.finditer(r"virtual\s+([^;{]*?)([~\w]+)\s*\(", source):
            names += [match[2], match[2]] if match[2].startswith("~") else [match[2]]
    return names
