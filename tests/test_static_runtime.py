"""Extensions that use CUDA: served through the shared runtime and the driver, refused with a runtime of their own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capture_folder import CaptureFolder
from conftest import HANG_SECONDS
from foretell.analysis.verdict import estimate_of
from foretell.errors import UnsupportedError
from foretell.runs import find_torch

EXTENSION = """
#include <stddef.h>
int cudaGetDeviceCount(int *), cudaMalloc(void **, size_t), cudaMemset(void *, int, size_t);
int use(void) {
    int count = 0;
    void *memory = 0;
    int error = cudaGetDeviceCount(&count);
    if (!error) error = cudaMalloc(&memory, 10 << 20);
    return error ? error : cudaMemset(memory, 0, 100);
}
"""
SCRIPT = """
import ctypes, sys, torch
torch.ones(1000, device="cuda")
before = torch.cuda.mem_get_info()[0]
print(ctypes.CDLL(sys.argv[1]).use(), before - torch.cuda.mem_get_info()[0])
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""


def runtime(pattern: str) -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob(f"*/lib/{pattern}"))]
    if not found or shutil.which("cc") is None or find_torch(sys.executable) is None:
        pytest.skip(f"needs a C compiler, torch and {pattern}")
    return found[0]


def run(folder: Path, library: Path) -> subprocess.CompletedProcess[str]:
    (folder / "extension.c").write_text(EXTENSION)
    (folder / "train.py").write_text(SCRIPT)
    extension = folder / "libcustom_operators.so"
    build = ["cc", "-shared", "-fPIC", "-o", str(extension), "extension.c", str(library), "-lpthread", "-ldl", "-lrt"]
    subprocess.run(build, cwd=folder, check=True)
    command = [sys.executable, "-m", "foretell", "run", "--gpu", "rtx-3060", "train.py", str(extension)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)


def test_a_library_with_its_own_runtime_is_named_and_gives_no_number(tmp_path: Path) -> None:
    done = run(tmp_path, runtime("libcudart_static.a"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "libcustom_operators.so contains its own copy of the CUDA runtime" in done.stderr.replace("\n", " ")
    assert "--cudart shared" in done.stderr.replace("\n", " ")
    assert "FITS" not in done.stdout


def test_a_library_with_the_shared_runtime_and_one_that_loads_the_driver_are_served(tmp_path: Path) -> None:
    done = run(tmp_path, runtime("libcudart.so.*"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:2] == [f"0 {10 << 20}", "0 0 1"]


def test_a_library_that_several_processes_load_is_named_once(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch().native(8, "/opt/libfoo.so").end(1, 2, (1, 2))
    CaptureFolder(tmp_path, pid=101).native(8, "/opt/libfoo.so")
    trace = folder.trace()
    assert len(trace.unsupported) == 1
    with pytest.raises(UnsupportedError, match=r"libfoo\.so contains its own copy of the CUDA runtime"):
        estimate_of(trace)
