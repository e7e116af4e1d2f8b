"""Tells the other ranks where in the script this one waits, so that ranks which wait for each other for ever are found
and named.

The virtual NCCL knows of its own waits. A rank can wait elsewhere in torch.distributed: in a store for the name of a
communicator (in torch 2.6 a first `recv` does), or in Gloo. It does if its main thread is in a function of
torch.distributed and has slept from one look to the next.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from ..capture import Capture
from ..where import OWN_FOLDERS, in_short, where_of

_SECONDS = 0.4
_LONG_SECONDS = 20.0
"""The user is told of a wait that takes so long: the other rank may compute, or hang."""
_STUCK_SECONDS = 10.0
"""So long, in which nothing has changed, all ranks have waited elsewhere than in the virtual NCCL: for ever."""


def tell_where_this_rank_waits(capture: Capture, library: Any, torch: Any) -> None:
    library.foretell_stands.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.foretell_stuck.restype = library.foretell_own_wait.restype = ctypes.c_char_p
    folder = os.path.dirname(torch.distributed.__file__) + os.sep
    watch = partial(capture.guarded, "where this rank waits", partial(_watch, capture, library, folder))
    threading.Thread(target=watch, name="foretell: where this rank waits", daemon=True).start()


def _watch(capture: Capture, library: Any, folder: str) -> None:
    has_slept = _main_thread_sleeps()
    before, num_stays, is_told = 0, 0, False
    while True:
        time.sleep(_SECONDS)
        now, is_asleep = library.foretell_current_wait(), has_slept()
        has_stayed, before = now == before and (now or is_asleep), now
        num_stays = num_stays + 1 if now and has_stayed else 0
        # Frames only of a thread that stands still: who holds one keeps its tensors alive.
        function, where = _place(folder) if has_stayed else (None, None)
        if now and where:
            library.foretell_stands(None, where.encode())
            if num_stays == int(_LONG_SECONDS / _SECONDS):
                text = library.foretell_own_wait().decode(errors="replace")
                capture.journal.write("rank_waits", text=text, seconds=_LONG_SECONDS)
        elif function and not now:
            library.foretell_stands(function.encode(), (where or "").encode())
            stuck = library.foretell_stuck(int(_STUCK_SECONDS / _SECONDS))
            if stuck:
                _end(capture, stuck.decode(errors="replace"), where)
        elif is_told:
            library.foretell_stands(None, None)
        is_told = bool(function or where)


def _main_thread_sleeps() -> Callable[[], bool]:
    """A function that says whether the main thread has slept since the last call."""
    ident = threading.main_thread().ident
    assert ident is not None, "it runs"
    clock, before = time.pthread_getcpuclockid(ident), -1

    def sleeps() -> bool:
        nonlocal before
        now, last = time.clock_gettime_ns(clock), before
        before = now
        with open("/proc/self/stat", "rb") as file:
            return now == last and file.read().rpartition(b")")[2].split()[0] == b"S"

    return sleeps


def _place(folder: str) -> tuple[str | None, str | None]:
    """The function of torch.distributed in which the main thread is, if it is in one, and the line of the script."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_FOLDERS):
        frame = frame.f_back
    if frame is None:
        return None, None
    function = frame.f_code.co_name if frame.f_code.co_filename.startswith(folder) else None
    return function, in_short(where_of(frame))


def _end(capture: Capture, why: str, where: str | None) -> None:
    """As an exception of the script would; the main thread is not in Python."""
    capture.journal.write("exception", type="RuntimeError", message=why, where=where, is_oom=False)
    print(f"foretell: {why}", file=sys.stderr, flush=True)
    os._exit(1)
