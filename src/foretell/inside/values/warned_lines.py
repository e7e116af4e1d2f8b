"""Warnings point to the script's line, as they do without foretell.

torch's warnings name the innermost Python frame, or one that lies a number of calls further out. While the mode runs an
operator, frames lie in between: foretell's, torch's that hand the call to the mode, and the function itself, if it is
one in Python, which is entered twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import wraps
from types import FrameType
from typing import Any

from ..capture import Capture
from ..where import OWN_FOLDERS

_OVERRIDES = os.path.join("torch", "overrides.py")


class _Thread(threading.local):
    is_silent = False


_thread = _Thread()


def install(capture: Capture) -> None:
    capture.patches.wrap(warnings, "warn", _counting_frames_of_the_script)
    # Warnings of C functions too come here, also where a script records them.
    capture.patches.wrap(warnings, "_showwarnmsg", _with_the_line_of_the_script)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """An operator that is repeated on the host has warned before."""
    _thread.is_silent = True
    try:
        yield
    finally:
        _thread.is_silent = False


def _counting_frames_of_the_script(original: Any) -> Any:
    @wraps(original)
    def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **kwargs: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        num_frames = 2  # this function and the one that warns
        for _ in range(stacklevel - 1):
            if frame is None:
                break
            frame, num_passed = _next_of_the_script(frame)
            num_frames += num_passed
        return original(message, category, num_frames, source, **kwargs)

    return warn


def _with_the_line_of_the_script(original: Any) -> Any:
    @wraps(original)
    def show(message: Any) -> Any:
        if _thread.is_silent:
            return None
        frame = sys._getframe(1)
        if str(message.filename).startswith(OWN_FOLDERS) and frame.f_code.co_filename == message.filename:
            script, _ = _next_of_the_script(frame)
            if script is not None:
                message.filename, message.lineno, message.line = script.f_code.co_filename, script.f_lineno, None
        return original(message)

    return show


def _next_of_the_script(frame: FrameType) -> tuple[FrameType | None, int]:
    """The frame that has called this one, and how many frames out it is."""
    caller, num_passed = frame.f_back, 1
    if not _is_between(caller) and not _is_between(frame):
        return caller, num_passed
    while _is_between(caller) and caller is not None:
        caller, num_passed = caller.f_back, num_passed + 1
    if caller is not None and caller.f_code is frame.f_code:
        caller, num_passed = caller.f_back, num_passed + 1
    return caller, num_passed


def _is_between(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    file = frame.f_code.co_filename
    return file.startswith(OWN_FOLDERS) or file.endswith(_OVERRIDES)
