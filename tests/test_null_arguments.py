"""Null pointers and impossible numbers: where NVIDIA's libraries return an error, the virtual GPU does not crash."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from foretell.virtual.environment import library_paths
from foretell.virtual.symbols import dynamic_symbols

PATHS = library_paths()
MAY_DIE = {
    "__cudaRegisterFatBinary": "has no error code; code made by nvcc calls it with the address of a constant",
}
# Each call is made in a process of its own, and ended by a signal after three seconds of CPU time, or a minute.
CALLS = """
import ctypes, json, os, signal, sys

libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]
nothing, buffer = ctypes.c_void_p(0), ctypes.create_string_buffer(1 << 16)
died = []
for name in json.load(sys.stdin):
    library = next(each for each in libraries if hasattr(each, name))
    for first in (nothing, ctypes.c_void_p(ctypes.addressof(buffer))):
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.setitimer(signal.ITIMER_PROF, 3)
            signal.alarm(60)
            getattr(library, name)(first, *[nothing] * 23)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            died.append((name, "null" if first is nothing else "first valid", status))
print(json.dumps(died))
"""


def exported() -> list[str]:
    found = {name.split("@")[0] for path in (PATHS.cuda, PATHS.nvml) for name in dynamic_symbols(path)[1]}
    return sorted(name for name in found if name.startswith(("cu", "__cuda", "nccl", "nvml")))


def python(program: str, *, stdin: str = "") -> str:
    command = [sys.executable, "-c", program, str(PATHS.cuda), str(PATHS.nvml)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


def test_no_function_dies_of_null_arguments() -> None:
    names = exported()
    assert len(names) > 1200
    died = json.loads(python(CALLS, stdin=json.dumps(names)))
    assert {name for name, _, _ in died} == set(MAY_DIE), died


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("cudaMemGetInfo(byref(number), None)", 1),
        ("cudaMalloc(None, 1)", 1),
        ("cudaHostAlloc(None, 1, 0)", 1),
        ("cudaMallocAsync(None, 1, None)", 1),
        ("cudaMalloc(byref(pointer), c_size_t(-1))", 2),
        ("cudaSetDevice(-1)", 101),
        ("cudaDeviceGetAttribute(byref(number), 1, -1)", 101),
        ("cuGetErrorName(2, None)", 1),
        ("cuMemCreate(byref(number), 2 << 20, None, 0)", 1),
        ("cuPointerGetAttributes(1, byref(number), None, None)", 1),
        ("cuMemUnmap(c_size_t(-1), c_size_t(-1))", 1),
        ("cuMemcpyDtoDAsync_v2(c_size_t(2**62), c_size_t(2**62), c_size_t(8), None)", 1),
        ("cudaMemcpyPeer(c_size_t(2**62), 0, c_size_t(2**62), 0, c_size_t(8))", 1),
        ("cublasGetStream_v2(None, byref(pointer))", 7),
        ("cudnnSetStream(None, None)", 2000),
        ("cusolverDnSpotrf_bufferSize(None, 0, 8, None, 8, None)", 3),
        ("cusparseSpMatGetSize(None, None, None, None)", 3),
        ("cufftXtMakePlanMany(0, 2**31 - 1, byref(number), *[None] * 9, byref(number), 0)", 4),
        ("cuptiGetVersion(None)", 1),
        ("ncclCommInitAll(byref(pointer), 2**31 - 1, None)", 4),
        ("ncclCommInitAll(byref(pointer), -1, None)", 4),
        ("ncclAllReduce(None, None, 1, 7, 0, None, None)", 4),
        ("nvmlDeviceGetHandleByIndex_v2(c_uint(-1), byref(pointer))", 2),
        ("nvmlDeviceGetCount_v2(None)", 2),
    ],
)
def test_the_error_is_the_librarys_own(call: str, code: int) -> None:
    program = f"""
import sys
from ctypes import *
cuda, nvml = CDLL(sys.argv[1], RTLD_GLOBAL), CDLL(sys.argv[2])
number, pointer = c_longlong(), c_void_p()
print({"nvml" if call.startswith("nvml") else "cuda"}.{call})
"""
    assert int(python(program)) == code
