"""The options of a capture, as `FORETELL_CAPTURE` carries them to the watched process, and its other variables."""

from __future__ import annotations

import json
from typing import Any


class Option:
    __slots__ = ("default", "meaning", "values")

    def __init__(self, default: Any, values: str, meaning: str) -> None:
        self.default = default
        self.values = values
        self.meaning = meaning


OPTIONS: dict[str, Option] = {
    "directory": Option(None, "a path", "the capture folder; has no default"),
    "steps": Option("auto", '`"auto"`, `"all"`, `"worst"` or a number', "when training has been seen for long enough"),
    "whole_loops": Option(
        "none",
        '`"none"`, `"evaluation"` or `"all"`',
        "which loops over a DataLoader run to their ends, although enough has been seen",
    ),
    "skip_init": Option(True, "a boolean", "skip weight initialisation where that changes nothing the script does"),
    "isolation": Option(
        "auto",
        '`"kernel"`, `"python"` or `"none"`',
        "what protects files; `auto` is `python`, because `runs` has chosen where the kernel does",
    ),
    "offline": Option(True, "a boolean", "keep model hubs offline"),
    "history": Option(True, "a boolean", "record PyTorch's memory history"),
    "attribution": Option(True, "a boolean", "note who holds the memory"),
    "values": Option(True, "a boolean", "compute the small values that decide what the script does"),
    "assume": Option(
        "typical", '`"low"`, `"typical"` or `"high"`', "how many elements an unknown mask selects: none, half or all"
    ),
    "engine": Option("auto", '`"auto"`, `"virtual"` or `"cpu"`', "`auto`: the CPU engine where torch has no CUDA"),
    "execute": Option(False, "a boolean", "the CPU engine computes every value"),
    "survey": Option(False, "a boolean", "note what of the training could be done otherwise"),
    "describe": Option(False, "a boolean", "describe the job at its first backward pass, and end there"),
    "alternatives": Option((), '`["autocast=bfloat16"]`', "changes to make to the training"),
    "interconnect": Option(
        None, '`"nvlink,ib"`', "how GPUs of a machine reach each other, and those of two: `runs` says both"
    ),
    "nccl_bytes": Option(None, "a number", "what NCCL's buffers take, instead of what follows from its rules"),
    "phases": Option(True, "a boolean", "mark forward and backward; off only in tests"),
    "time": Option(False, "a boolean", "record the operators of a step, for its time"),
    "verbose": Option(False, "a boolean", "show whole tracebacks, with foretell's frames and of out-of-memory errors"),
    "guards": Option(True, "a boolean", "refuse what cannot be estimated: a card torch has no kernels for"),
}

VARIABLES: dict[str, tuple[str, str]] = {
    "LD_PRELOAD": (
        "virtual",
        "the virtual GPU: `libcuda.so.1` (driver, runtime, cuBLAS, cuDNN, NCCL, CUPTI) and `libnvidia-ml.so.1` (NVML)",
    ),
    "FORETELL_DEVICE": ("virtual", "the card, as `key=value;key=value` (see `virtual/environment.py`)"),
    "FORETELL_LOG": ("virtual", "path prefix of the native log; empty or absent: nothing is logged"),
    "FORETELL_WORKSPACES": (
        "runs",
        "with `--profile`: a file, one convolution a line, with the workspace it took on a real card",
    ),
    "FORETELL_CAPTURE": ("runs", "the options below, as JSON"),
    "PYTHONPATH": (
        "runs",
        "`inside/bootstrap` first: its `sitecustomize.py` loads `inside` by path, then the user's own `sitecustomize`",
    ),
    "TRITON_LIBCUDA_PATH": ("runs", "`linker/` of the capture folder"),
    "TORCHINDUCTOR_CACHE_DIR": (
        "runs",
        "`~/.cache/foretell/compiled/inductor`: a real GPU must not find what was tuned on a virtual one",
    ),
    "TRITON_CACHE_DIR": ("runs", "`~/.cache/foretell/compiled/triton`, for the same reason"),
}
"""What is set for the watched process: by which package, and what for."""


def encode(directory: Any, options: object) -> str:
    """The value of FORETELL_CAPTURE; what `options` has no attribute for keeps its default."""
    given = {name: getattr(options, name) for name in OPTIONS if hasattr(options, name)}
    return json.dumps({**given, "directory": str(directory)})


def complete(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, and the defaults of the others."""
    unknown = sorted(given.keys() - OPTIONS.keys())
    if unknown or "directory" not in given:
        raise ValueError(f"not options of a capture: {unknown}" if unknown else "a capture needs a directory")
    return {**{name: option.default for name, option in OPTIONS.items()}, **given}
