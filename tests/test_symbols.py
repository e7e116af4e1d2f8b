"""Every CUDA function that the installed torch imports is answered: by the virtual GPU, or as not implemented."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from foretell.virtual import symbols
from foretell.virtual.environment import library_paths

NATIVE = Path(symbols.__file__).parent / "native"
_, OFFERED = symbols.dynamic_symbols(library_paths().cuda)
OFFERED = {name.split("@")[0] for name in OFFERED}


def installed_libraries() -> list[Path]:
    folders = []
    for package, folder in (("torch", "lib"), ("torchvision", ".")):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders.append(Path(spec.submodule_search_locations[0]) / folder)
    return [path for folder in folders for path in folder.glob("*.so")]


def test_every_function_torch_imports_is_offered() -> None:
    libraries = installed_libraries()
    if not any(path.name == "libtorch_cuda.so" for path in libraries):
        pytest.skip("this torch has no CUDA")
    assert symbols.cuda_imports(libraries) - OFFERED == set()


def test_every_function_of_the_cuda_runtime_is_offered_to_extensions() -> None:
    """One that is not would go to NVIDIA's own library, which finds no driver of its own and fails with odd errors."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else []
    runtimes = [path for folder in folders or [] for path in Path(folder).rglob("libcudart.so.*")]
    if not runtimes:
        pytest.skip("no CUDA runtime is installed")
    functions = {name for path in runtimes for name in symbols.dynamic_symbols(path)[1] if "cuda" in name[:6]}
    assert functions - OFFERED - {"cudaCreateChannelDesc"} == set()


def test_no_function_is_both_implemented_and_listed_as_missing() -> None:
    listed = re.findall(r"F\((\w+), \w+\)", (NATIVE / "core/unimplemented.inc").read_text().partition("*/")[2])
    assert len(listed) == len(set(listed))
    implemented = {
        name
        for path in NATIVE.rglob("*.c")
        if path.name != "unimplemented.c"
        for name in re.findall(r"EXPORT \w[\w *]*?\b(\w+)\(", path.read_text())
    }
    assert implemented & set(listed) == set()


def test_nothing_but_cudas_names_and_our_own_is_offered_to_other_programs() -> None:
    """A preloaded library's names come before everybody's: a plain `lock` would take the place of a program's own."""
    names = re.compile(r"_*cuda|cu[A-Z]|cublas|cudnn|cufft|cusolver|cusparse|cupti|nccl|nvshmem|foretell_|libcudart")
    assert {name for name in OFFERED if not names.match(name)} == set()


def test_a_function_whose_signature_differs_has_a_version_for_cuda_12_and_for_cuda_13() -> None:
    library = ctypes.CDLL(str(library_paths().cuda))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    found = [find(library._handle, b"cudaStreamGetCaptureInfo", v) for v in (b"libcudart.so.12", b"libcudart.so.13")]
    assert all(found)
    assert found[0] != found[1]
