"""Places in the code, in a few words."""

from __future__ import annotations

import os
import re
from pathlib import Path

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")


def short_place(where: str) -> str:
    """`train.py:7` in the user's code, `resnet.py:146 (torchvision)` in a library's."""
    name, package = re.split(r"[/\\]", where)[-1], _INSTALLED.search(where)
    return f"{name} ({package[1]})" if package else name


def relative_place(where: str) -> str:
    """The same, with the path from the current folder for code below it, and else the whole path."""
    if _INSTALLED.search(where):
        return short_place(where)
    path, _, line = where.rpartition(":")
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return where
    return f"{relative if not relative.startswith('..') else Path(path)}:{line}"
