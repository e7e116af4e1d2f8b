"""The console, and output that survives a closed pipe (`foretell gpus | head`)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which here means that the script failed

    return Terminal(stderr=stderr, highlight=False)


def say(message: str, *, before: str = "") -> None:
    """A line of foretell's own, on standard error."""
    with contextlib.suppress(OSError, ValueError):
        print(f"{before}foretell: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
