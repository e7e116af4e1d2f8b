"""Lines of JSON that another process writes into a pipe."""

from __future__ import annotations

import json
import os
import select
from typing import Any


class JsonLines:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def read(self, seconds: float | None) -> dict[str, Any] | None:
        """The next line; None after the last one. TimeoutError if none has come after so long."""
        while b"\n" not in self._unread:
            if not select.select([self._descriptor], [], [], seconds)[0]:
                raise TimeoutError
            piece = os.read(self._descriptor, 1 << 16)
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))
