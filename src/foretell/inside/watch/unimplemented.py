"""Journals calls of CUDA functions that the virtual GPU lacks: name, operator, source line."""

from __future__ import annotations

import ctypes
import sys
from types import FrameType
from typing import Any

from ..capture import Capture
from ..values.mode import Values
from ..where import where_now

_Listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class Unimplemented:
    def __init__(self, capture: Capture, torch: Any) -> None:
        self._capture = capture
        self._torch = torch
        self._listen = ctypes.CDLL(None).foretell_on_unimplemented  # in the preloaded virtual GPU
        self._listen.argtypes, self._listen.restype = [_Listener], None
        self._listener = _Listener(self._called)

    def install(self) -> None:
        self._listen(self._listener)
        self._capture.patches.added("a listener of the virtual GPU", lambda: self._listen(_Listener()))
        self._capture.before_end.append(lambda: self._listen(_Listener()))  # CUDA is still used while Python shuts down

    def _called(self, function: bytes) -> None:
        self._capture.guarded("unimplemented functions", lambda: self._journal(function.decode()))

    def _journal(self, name: str) -> None:
        self._capture.journal.write("unimplemented", name=name, operator=self._operator(), where=where_now())

    def _operator(self) -> str | None:
        """The function the script called, or the backward node this thread is running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is Values.__torch_function__.__code__:
                function = frame.f_locals["func"]
                return str(self._torch.overrides.resolve_name(function) or getattr(function, "__name__", function))
            frame = frame.f_back
        node = self._torch._C._current_autograd_node()
        return None if node is None else str(node.name())
