"""Kernel code for each architecture in the libraries of this environment's torch, as the driver loads it eagerly.

    python benchmarks/code_sizes.py

Prints MiB by compute capability: of the libraries that a process loads with torch, of cuDNN's engines, and of cuDNN's
other operators. `rules/libraries.py` has these figures for torch 2.6 (CUDA 12.4) and, for newer
cards, torch 2.15 (CUDA 13.2).

A library has containers of code (`fatbin`), each with the same kernels for several architectures, compressed or
not; the driver takes those of the highest one that the card can run, in the card's major version.
"""

from __future__ import annotations

import importlib.util
import mmap
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from foretell.trace import machine_code

CAPABILITIES = ((6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
PARTS = {
    "process": ("torch_cuda", "cublas", "cublasLt", "cusparse", "cusparseLt", "cufft", "curand", "nccl"),
    "engines": ("cudnn_engines_precompiled", "cudnn_engines_runtime_compiled", "cudnn_cnn"),
    "operators": ("cudnn_ops",),
}
"""`process`: what libtorch_cuda is linked to, except for cuDNN, whose parts are loaded when they are used."""


def main() -> int:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        print("no torch in this environment", file=sys.stderr)
        return 2
    site = Path(spec.origin).parents[1]
    libraries = {path.name.split(".so")[0].removeprefix("lib"): path for path in _shared_objects(site)}
    print("capability  " + "  ".join(f"{part:>9}" for part in PARTS))
    sizes = {name: code_bytes(libraries[name]) for part in PARTS.values() for name in part if name in libraries}
    for capability in CAPABILITIES:
        row = [sum(sizes[name][capability] for name in part if name in sizes) for part in PARTS.values()]
        print(f"{capability!s:>10}  " + "  ".join(f"{each / 2**20:9.1f}" for each in row))
    return 0


def _shared_objects(site: Path) -> list[Path]:
    return [*site.glob("torch/lib/*.so*"), *site.glob("nvidia/**/*.so*"), *site.glob("cusparselt/**/*.so*")]


def code_bytes(path: Path) -> dict[tuple[int, int], int]:
    """By capability. The highest architecture of each container that the card can run counts."""
    total: dict[tuple[int, int], int] = defaultdict(int)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for by_architecture in _containers(data):
            for major, minor in CAPABILITIES:
                usable = [each for each in by_architecture if each // 10 == major and each % 10 <= minor]
                total[major, minor] += by_architecture[max(usable)] if usable else 0
    return total


def _containers(data: mmap.mmap) -> Iterator[dict[int, int]]:
    """Bytes of code by architecture (`86`) of every container."""
    at = data.find(machine_code.CONTAINER)
    while at >= 0:
        found: dict[int, int] = defaultdict(int)
        end = at + 4  # the same four bytes by chance
        for entry in machine_code.entries(data, at):
            found[entry.architecture] += entry.num_bytes if entry.kind == machine_code.CUBIN else 0
            end = entry.end
        yield found
        at = data.find(machine_code.CONTAINER, end)


if __name__ == "__main__":
    sys.exit(main())
