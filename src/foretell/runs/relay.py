"""Passes on what a run prints into a pipe, and drops it once the reader has left (`foretell run ... | head -1`).

With the pipe itself as its standard output, a script would then fail with a BrokenPipeError, or with exit code 120 when
Python flushes its last lines: an error of its own that no run on a GPU has. To the script a pipe looks like a pipe, so
that it buffers as usual.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading

_CHUNK_BYTES = 1 << 20
"""At least what a pipe can hold, so that one read empties it."""


def is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class Relay:
    """A pipe whose contents go to another one, until `finish`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._source, self.descriptor = os.pipe()
        """The second is for the run to write to."""
        os.set_blocking(self._source, False)
        self._finished, self._finishing = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Pass on what is left, when the run has ended. A process that escaped may go on printing: in vain."""
        os.close(self._finishing)
        self._thread.join()
        for descriptor in (self._source, self._finished, self.descriptor):
            os.close(descriptor)

    def _pass_on(self) -> None:
        has_reader = True
        is_finished = False
        while not is_finished:
            ready, _, _ = select.select([self._source, self._finished], [], [])
            is_finished = self._finished in ready
            chunk = b""
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(self._source, _CHUNK_BYTES)
            has_reader = has_reader and self._write(chunk)

    def _write(self, chunk: bytes) -> bool:
        """Whether there is still somebody who reads it."""
        while chunk:
            try:
                chunk = chunk[os.write(self._target, chunk) :]
            except BlockingIOError:  # others who share the pipe may have made it so
                select.select([], [self._target], [])
            except OSError:
                return False
        return True


class Relays:
    """Relays for the standard streams that are pipes; two that are the same pipe share one, which keeps the order."""

    def __init__(self) -> None:
        self._relays: dict[tuple[int, int], Relay] = {}

    def descriptor(self, stream: int) -> int:
        """What a run gets for this standard stream of ours: the stream itself unless it is a pipe."""
        if not is_pipe(stream):
            return stream
        status = os.fstat(stream)
        key = status.st_dev, status.st_ino
        if key not in self._relays:
            self._relays[key] = Relay(stream)
        return self._relays[key].descriptor

    def __enter__(self) -> Relays:
        return self

    def __exit__(self, *error: object) -> None:
        for relay in self._relays.values():
            relay.finish()
