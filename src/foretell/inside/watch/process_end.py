"""Journals how the process ends, in `exception` and `end` lines.

`atexit` runs its functions last in, first out, and this one is registered before the script's first line: the script's
own exit handlers and multiprocessing's come first. It runs after a return, sys.exit, an exception, os._exit and
foretell's own early end; not after a signal or an exit in C, which the reader recognises by the missing line.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from ..capture import Capture
from ..guard.network import Network
from ..own_frames import prune, without_own_frames
from ..where import where_raised


class ProcessEnd:
    def __init__(self, capture: Capture, network: Network) -> None:
        self._capture = capture
        self._network = network
        self._pid = os.getpid()
        self._reported: BaseException | None = None
        self._has_ended = False

    @property
    def has_raised(self) -> bool:
        """Whether an exception has left the script."""
        return self._reported is not None

    def install(self) -> None:
        atexit.register(self._at_exit)
        patches = self._capture.patches
        patches.added("atexit", lambda: atexit.unregister(self._at_exit))
        patches.wrap(os, "_exit", self._ending_first)
        patches.wrap(sys, "excepthook", self._watching_main_thread)
        patches.wrap(threading, "excepthook", self._watching_other_threads)

    def _watching_main_thread(self, previous: Any) -> Any:
        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            if not self._capture.options.verbose:
                traceback = without_own_frames(traceback)
                prune(error)
            self._report(error, traceback)
            told = describe(error, traceback)
            if told["is_oom"] and not self._capture.options.verbose:
                where = f" at {told['where']}" if told["where"] else ""
                print(f"{told['type']}{where}; --verbose shows the traceback", file=sys.stderr)
            else:
                previous(kind, error, traceback)

        return excepthook

    def _watching_other_threads(self, previous: Any) -> Any:
        def excepthook(args: Any) -> None:
            if isinstance(args.exc_value, SystemExit):  # Python is silent about SystemExit, but not about subclasses
                return
            if args.exc_value is not None:
                if not self._capture.options.verbose:
                    prune(args.exc_value)
                self._write(args.exc_value, args.exc_traceback, thread=True)
            previous(args)

        return excepthook

    def _ending_first(self, previous: Any) -> Any:
        def exit_at_once(status: int) -> None:
            if os.getpid() == self._pid:  # not a fork, which would tell of its parent
                with suppress(Exception):
                    self._at_exit()
            previous(status)

        return exit_at_once

    def _report(self, error: BaseException, traceback: TracebackType | None) -> None:
        if error is not self._reported:
            self._reported = error
            self._write(error, traceback)

    def _write(self, error: BaseException, traceback: TracebackType | None, **more: bool) -> None:
        self._capture.journal.write("exception", **describe(error, traceback), **self._of_network(error), **more)

    def _of_network(self, error: BaseException) -> dict[str, str]:
        if not self._capture.options.offline:
            return {}
        if wanted := self._network.wanted_by(error):
            return {"network": wanted}
        unreached = self._network.unreached()
        return {"unreached": unreached} if unreached else {}

    def _at_exit(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        # The interpreter itself sets sys.last_value, so scripts that replace sys.excepthook are covered too.
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and os.getpid() == self._pid:
            self._report(error, error.__traceback__)
        if not (self._capture.journal.is_open or self._capture.journal.is_main):
            return
        for call in self._capture.before_end:
            try:
                call()
            except Exception as failure:
                self._capture.hook_failed("process exit", failure)
        self._capture.journal.write(
            "end",
            steps=self._capture.num_steps,
            phases=self._capture.phases_seen,
            **self._capture.end_values(),
            seconds={
                "import_torch": round(self._capture.import_torch_seconds, 6),
                "script": round(time.monotonic() - self._capture.started, 6),
            },
        )


def _is_of_nccl(message: str) -> bool:
    """NCCL found no memory for its buffers."""
    return "NCCL" in message and "Failed to CUDA malloc: out of memory" in message


def describe(error: BaseException, traceback: TracebackType | None) -> dict[str, Any]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        "type": name,
        "message": str(error),
        "where": where_raised(traceback),
        "is_oom": kind.__name__ == "OutOfMemoryError" or _is_of_nccl(str(error)),
    }
