"""Finds the current line: `file:line` of the innermost frame outside libraries, or of what allocates memory."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from types import FrameType, TracebackType

from ..protocol.lines import Lines

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN = ("inside", "engines", "rules", "allocator", "protocol", "namespaces")
OWN_FOLDERS = tuple(os.path.join(_PACKAGE, name) + os.sep for name in _OWN)
"""foretell's folders that run in the user's process."""


def _library_folders() -> tuple[str, ...]:
    """The standard library, and every folder of installed packages: those of this Python and, in an environment based
    on another one, those that `site` has added to the path."""
    known = sysconfig.get_paths()
    folders = [known[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [path for path in sys.path if path.rstrip(os.sep).endswith(("site-packages", "dist-packages"))]
    return tuple(dict.fromkeys(folder.rstrip(os.sep) + os.sep for folder in folders))


LIBRARY_FOLDERS = _library_folders()
_LINES = Lines(LIBRARY_FOLDERS, OWN_FOLDERS)


def where_now() -> str | None:
    """Current line of the user's code; that of the main thread if this one (autograd's) has no user frames."""
    found = _where(_outwards(sys._getframe(1)))
    if found is not None and found[1]:
        return found[0]
    return (_where(_in_main_thread()) or found or (None, False))[0]


def where_allocated() -> str | None:
    """Current line of the model, which may be a library's; that of the main thread if this one (autograd's) has none
    but torch's."""
    found = _LINES.choose(_outwards(sys._getframe(1)))
    if found is None or found[1] == "machinery":
        found = _LINES.choose(_in_main_thread()) or found
    return None if found is None else found[0]


_FOLDER = os.getcwd() + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")


def in_short(where: str | None) -> str | None:
    """A place for a sentence: from the folder of the run, or in a library by its name."""
    if where is None:
        return None
    package = _INSTALLED.search(where)
    return f"{os.path.basename(where)} ({package[1]})" if package else where.removeprefix(_FOLDER)


def where_of(frame: FrameType) -> str | None:
    """Line of the user's code that the frame is, or that has called it."""
    found = _where(_outwards(frame))
    return found[0] if found else None


def where_raised(traceback: TracebackType | None) -> str | None:
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    found = _where(places[::-1])
    return found[0] if found else None


def is_in_library(file: str) -> bool:
    return file.startswith(LIBRARY_FOLDERS)


def _in_main_thread() -> list[tuple[str, int, str]]:
    """If that is another one. A frame that has itself among its variables would keep all its callers and their tensors
    alive until Python collects garbage."""
    main = threading.main_thread().ident
    return _outwards(sys._current_frames().get(main)) if main not in (None, threading.get_ident()) else []


def _outwards(frame: FrameType | None) -> list[tuple[str, int, str]]:
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return places


def _where(places: list[tuple[str, int, str]]) -> tuple[str, bool] | None:
    """(place, whether it is the user's) of the innermost user frame, or without one the innermost frame of all."""
    places = [place for place in places if not place[0].startswith((*OWN_FOLDERS, "<frozen"))]
    for file, line, _ in places:
        if not is_in_library(file) and os.path.isabs(file):
            return f"{file}:{line}", True
    return (f"{places[0][0]}:{places[0][1]}", False) if places else None
