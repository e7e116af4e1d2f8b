"""The environment variables that make a process see a virtual GPU. The other side is native/core/config.c."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.errors import UnsupportedError
from foretell.records import Gpu, LibraryBytes, MeasuredConvolution

Events = Literal["late", "early"]
Workspaces = Literal["asked", "none", "next"]
# cuDNN's numbers for the three operations, as the virtual GPU uses them.
_OPERATIONS = {"forward": 10, "weights": 11, "data": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPaths:
    cuda: Path
    """Driver, runtime, cuBLAS, cuDNN, NCCL and CUPTI in one library, under the driver's name."""
    nvml: Path


def library_paths() -> LibraryPaths:
    """Paths of the native libraries. They are compiled when foretell is built, so they can be missing."""
    folder = Path(__file__).parent
    paths = LibraryPaths(cuda=folder / "libcuda.so.1", nvml=folder / "libnvidia-ml.so.1")
    missing = [path.name for path in (paths.cuda, paths.nvml) if not path.is_file()]
    if missing:
        raise UnsupportedError(
            f"the virtual GPU was not built: {' and '.join(missing)} not in {folder}. foretell was installed from "
            "source without a C compiler. Install gcc (or cc), then run `pip install --force-reinstall foretell`, "
            "or `make native` in a checkout."
        )
    return paths


def are_libraries_there() -> bool:
    try:
        library_paths()
    except UnsupportedError:
        return False
    return sys.platform == "linux"


def environment(
    gpu: Gpu,
    *,
    context_bytes: int,
    libraries: LibraryBytes,
    log_prefix: str,
    num_devices: int = 1,
    events: Events = "late",
    workspaces: Workspaces = "asked",
    is_preloaded: bool = True,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables to add to a child's environment; `base` is its environment without them (default: ours). Without
    `is_preloaded` the card is only described, for the CPU engine."""
    assert not set(";=") & set(gpu.device_name), gpu.device_name
    base = os.environ if base is None else base
    major, minor = gpu.compute_capability
    device = {
        "name": gpu.device_name,
        "count": num_devices,
        "total": gpu.total_bytes,
        "context": context_bytes,
        "major": major,
        "minor": minor,
        "sms": gpu.num_sms,
        "shared_per_block": gpu.shared_bytes_per_block,
        "shared_per_block_optin": gpu.shared_bytes_per_block_optin,
        "shared_per_sm": gpu.shared_bytes_per_sm,
        "registers_per_sm": gpu.registers_per_sm,
        "threads_per_sm": gpu.threads_per_sm,
        "blocks_per_sm": gpu.blocks_per_sm,
        "l2": gpu.l2_bytes,
        "bus_bits": gpu.memory_bus_bits,
        "clock_khz": gpu.clock_khz,
        "memory_clock_khz": gpu.memory_clock_khz,
        "pci_device_id": gpu.pci_device_id,
        "cublas_library": libraries.cublas,
        "cudnn_library": libraries.cudnn,
        "nccl_library": libraries.nccl,
        "batch_norm_library": libraries.cudnn_batch_norm,
        "events": events,
        "workspaces": workspaces,
    }
    described = {
        "FORETELL_DEVICE": ";".join(f"{key}={value}" for key, value in device.items()),
        "FORETELL_LOG": log_prefix,
    }
    if not is_preloaded:
        return described
    paths = library_paths()
    # Ours come first: other preloaded libraries (jemalloc, a profiler) must not resolve CUDA's names before us.
    ours = [_preloadable(path, Path(log_prefix).parent) for path in (paths.cuda, paths.nvml)]
    preload = [*map(str, ours), *filter(None, [base.get("LD_PRELOAD")])]
    return {"LD_PRELOAD": ":".join(preload), **described}


def convolution_line(measured: MeasuredConvolution) -> str:
    """One line in the format native/libraries/convolution.c reads."""
    (n, c, h, width), (_, k, p, q), (_, group_channels, r, s) = measured.x, measured.y, measured.w
    operation = _OPERATIONS[measured.direction]
    fields = (operation, measured.element_bytes, n, c, h, width, k, p, q, group_channels, r, s)
    return " ".join(map(str, (*fields, measured.workspace_bytes))) + "\n"


def _preloadable(path: Path, folder: Path) -> Path:
    """A path that can be preloaded: the dynamic linker splits LD_PRELOAD at spaces and colons and expands $, so such a
    path gets a symbolic link."""
    special = set(" :$\t")
    if not special & set(str(path)):
        return path
    link = folder / path.name
    if special & set(str(link)):
        raise UnsupportedError(
            f"cannot preload {path}: its path contains a space, a colon or a $. Set TMPDIR to a path without them."
        )
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link
