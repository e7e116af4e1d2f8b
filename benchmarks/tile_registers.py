"""Threads, registers and shared memory of the matrix products and convolutions in cuBLAS and cuDNN, by their tiles.

    python -m benchmarks.tile_registers [CAPABILITY]

Prints medians of the kernels in this environment's libraries whose names say their tile, for a capability (default:
8.0). `time/occupancy.py` has these figures. Shared memory asked for at the launch is not among them.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from foretell.trace import machine_code

_LIBRARIES = ("libcublasLt.so*", "libcudnn_engines_precompiled.so*")
_SIMT = re.compile(r"ampere_sgemm_(\d+)x(\d+)_")
_IMPLICIT = re.compile(r"xmma_\w*gemm\w*?_(tf32|f16|bf16)\w*_tilesize(\d+)x(\d+)x\d+_.*warpsize(\d)x(\d)x(\d)")
_FEWEST = 5


def main() -> int:
    major, minor = map(int, (sys.argv[1] if len(sys.argv) > 1 else "8.0").split("."))
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        print("no torch in this environment", file=sys.stderr)
        return 2
    folder = Path(spec.origin).parents[1] / "nvidia"
    groups: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for pattern in _LIBRARIES:
        for path in folder.glob(f"**/{pattern}"):
            for kernels in machine_code.of_library(path, set(_containers(path)), (major, minor), None).values():
                for name, needs in kernels.items():
                    if key := _tile(name):
                        groups[key].append(needs)
    print("type   tile      warps  kernels  registers  shared")
    for (kind, tile, warps), found in sorted(groups.items()):
        if len(found) >= _FEWEST:
            registers, shared = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"{kind:5}  {tile:8}  {warps:5}  {len(found):7}  {registers:9g}  {shared:6g}")
    return 0


def _tile(name: str) -> tuple[str, str, str] | None:
    """Type, tile and warps of a block, where the name says them."""
    if match := _SIMT.match(name):
        return "fp32", "x".join(match.groups()), "?"
    if match := _IMPLICIT.search(name):
        high, low = sorted(map(int, match.group(2, 3)), reverse=True)
        return match.group(1), f"{high}x{low}", "x".join(match.group(4, 5, 6))
    return None


def _containers(path: Path) -> Iterator[int]:
    """Where they would be in memory, if the file were loaded: as `machine_code.position` reads it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(machine_code.CONTAINER)
        while at >= 0:
            found = list(machine_code.entries(data, at))
            if found:
                yield machine_code.offset(data, at)
            at = data.find(machine_code.CONTAINER, found[-1].end if found else at + 4)


if __name__ == "__main__":
    sys.exit(main())
