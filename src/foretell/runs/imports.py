"""Modules a warm process imports before a fork: slow ones that the run would import anyway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from foretell.runs.worlds import ranks_run

_WORTH_IMPORTING = {
    "torchvision": ("torchvision",),
    "timm": ("torchvision", "timm"),
    "transformers": (
        "transformers",
        "torch._inductor.compile_fx",
        "torch.distributed.tensor",
        "torch.distributed.checkpoint",
        "scipy.optimize",
        "torchvision",
        "transformers.image_transforms",
        "transformers.models.auto.configuration_auto",
    ),
    "bitsandbytes": ("torch._inductor.compile_fx",),
}
"""Keyed by the module the script imports. Without accelerate and modules that import it: if deepspeed is installed,
they would remember that the warm process has none. For bitsandbytes, whose import initializes CUDA, the slowest
part."""


def worth_importing(words: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """Modules for `python SCRIPT ...` or `python -m MODULE ...`, from the imports in its first file."""
    source = _source(ranks_run(words), cwd)
    named = re.findall(r"^\s*(?:import|from)\s+(\w+)", source, re.MULTILINE)
    return tuple(dict.fromkeys(module for name in named for module in _WORTH_IMPORTING.get(name, ())))


def _source(words: Sequence[str], cwd: Path) -> str:
    if words[0] == "-m":
        place = cwd.joinpath(*words[1].split("."))
        paths = [place / "__main__.py", place.with_suffix(".py")]
    else:
        paths = [cwd / words[0], cwd / words[0] / "__main__.py"]
    for path in paths:
        try:
            return path.read_text(errors="replace")
        except OSError:
            continue
    return ""
