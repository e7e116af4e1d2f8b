"""Says which Python processes cannot be observed: they ignore PYTHONPATH, or have another environment."""

from __future__ import annotations

import os
import re
from functools import wraps
from typing import Any

from ..capture import Capture

PYTHON = re.compile(r"(python|pypy)[0-9.]*")


def install(capture: Capture) -> None:
    def on_subprocess(subprocess: Any) -> None:
        def starting(original: Any) -> Any:
            @wraps(original)
            def start(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
                capture.guarded("subprocess", lambda: _look_at(args, kwargs.get("env")))
                return original(self, args, *rest, **kwargs)

            return start

        capture.patches.wrap(subprocess.Popen, "__init__", starting)

    def _look_at(args: Any, environment: Any) -> None:
        if isinstance(args, (list, tuple)) and args:
            words = [os.fsdecode(word) for word in args if isinstance(word, (str, bytes, os.PathLike))]
            if words and is_unobserved(words, environment) and (text := _caveat(words)) not in noted:
                noted.add(text)
                capture.caveat(text)

    noted: set[str] = set()
    capture.imports.when_imported("subprocess", on_subprocess)


def is_unobserved(words: list[str], environment: Any) -> bool:
    """Whether the command is a Python that will not load the hooks."""
    if not PYTHON.fullmatch(os.path.basename(words[0])):
        return False
    if environment is not None and not {"FORETELL_CAPTURE", "PYTHONPATH"} <= set(map(os.fsdecode, environment)):
        return True
    for word in words[1:]:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            return False
        if not word.startswith("--") and set("IES") & set(word):
            return True
    return False


def _caveat(words: list[str]) -> str:
    return (
        f"a process of the script was not observed, so its GPU memory is not counted: {' '.join(words)[:80]} (Python "
        "with -I, -E or -S, or without the environment of its parent)"
    )
