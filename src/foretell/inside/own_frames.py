"""Leaves foretell's frames out of the tracebacks that the script prints.

A frame cannot take itself out of a traceback that passes through it, so they are taken out when a traceback is about to
be shown: by Python's hooks for uncaught exceptions, and by the class that formats tracebacks for everybody else
(`traceback.format_exc`, `logging.exception`).
"""

from __future__ import annotations

from functools import wraps
from types import TracebackType
from typing import Any

from ..protocol.marks import MODULE_FRAME
from .capture import Capture
from .where import OWN_FOLDERS


def install(capture: Capture) -> None:
    """With `--verbose` they stay."""

    def watch(module: Any) -> None:
        capture.patches.wrap(module.TracebackException, "__init__", _pruning)

    if not capture.options.verbose:
        capture.imports.when_imported("traceback", watch)


def prune(error: BaseException) -> None:
    """Of an exception, and of those it was raised from."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = without_own_frames(each.__traceback__)
            pending += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback, changed in place."""
    while traceback is not None and _is_own(traceback):
        traceback = traceback.tb_next
    last = traceback
    while last is not None:
        following = last.tb_next
        while following is not None and _is_own(following):
            following = following.tb_next
        last.tb_next = following
        last = following
    return traceback


def _is_own(traceback: TracebackType) -> bool:
    file = traceback.tb_frame.f_code.co_filename
    return file == MODULE_FRAME or file.startswith(OWN_FOLDERS)


def _pruning(original: Any) -> Any:
    @wraps(original)
    def init(self: Any, kind: Any, value: Any, traceback: Any, *args: Any, **kwargs: Any) -> None:
        original(self, kind, value, without_own_frames(traceback), *args, **kwargs)

    return init
