"""Writes `journal-<pid>.jsonl`, flushing every line at once. `protocol/journal.py` defines the lines.

The main process (the first Python of the command) writes from the start. Any other process writes nothing until it does
something relevant (uses the GPU, writes a file, fails): a DataLoader worker leaves no journal. Its early lines
(`process`, `torch`) are kept and written then. A forked child never writes into its parent's file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from ..protocol.journal import KINDS, mistake_in
from .where import LIBRARY_FOLDERS, OWN_FOLDERS


def now_us() -> int:
    return time.time_ns() // 1000


class Journal:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.is_main = _is_first_process(directory)
        self._pid = os.getpid()
        self._descriptor: int | None = None
        self._file: tuple[int, int] | None = None
        self._early: list[dict[str, Any]] = []
        self._is_broken = False
        os.register_at_fork(after_in_child=self._after_fork)

    def write(self, kind: str, **values: Any) -> None:
        mistake = mistake_in(kind, values)
        if mistake is not None:  # foretell's own error: fails a test, but not the user's script
            print(f"foretell: a line of the journal is not as it should be: {mistake}", file=sys.stderr)
        line = {"kind": kind, "time_us": now_us(), **values}
        if kind in KINDS and KINDS[kind].is_early:
            self._early.append(line)
            if not self.is_main:
                return
            lines = [line]
        else:
            lines = [line] if self.is_open or self.is_main else [*self._early, line]
        self._append("".join(json.dumps(each, default=str) + "\n" for each in lines))

    @property
    def is_open(self) -> bool:
        """Whether this process has written anything."""
        return self._descriptor is not None

    def _append(self, text: str) -> None:
        if self._is_broken:
            return
        try:
            if self._descriptor is None or _file_of(self._descriptor) != self._file:
                # The script may have closed it, and have got its number for a file of its own.
                path = os.path.join(self.directory, f"journal-{self._pid}.jsonl")
                self._descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                self._file = _file_of(self._descriptor)
            _write(self._descriptor, text.encode())
        except OSError as error:  # a full disk must not end the user's script
            self._is_broken = True
            print(f"foretell: cannot write the journal any more: {error}", file=sys.stderr)

    def _after_fork(self) -> None:
        if self._descriptor is not None and _file_of(self._descriptor) == self._file:
            os.close(self._descriptor)
        self._descriptor = None
        self._pid = os.getpid()
        self.is_main = False
        self._is_broken = False
        self._early = [line for line in self._early if line["kind"] != "process"]
        self._early.insert(0, {"kind": "process", "time_us": now_us(), **this_process()})


def this_process() -> dict[str, Any]:
    """Values of a `process` line."""
    return {
        "pid": os.getpid(),
        "argv": list(sys.orig_argv[1:]),
        "executable": sys.executable,
        "python": sys.version.split()[0],
        "library_folders": LIBRARY_FOLDERS,
        "own_folders": OWN_FOLDERS,
    }


# Bound before the overlay replaces them: the journal is never redirected.
_open = os.open
_write = os.write
_fstat = os.fstat


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Which file it is; None if it is closed."""
    try:
        status = _fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_first_process(directory: str) -> bool:
    """Whether this process creates the file `main`, and so is the main one; the file holds its pid."""
    try:
        descriptor = _open(os.path.join(directory, "main"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError:
        return False
    _write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True
