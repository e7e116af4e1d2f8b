"""Turns the user's process into a journal and a memory history in the capture folder.

Runs inside the user's interpreter, perhaps in an environment without foretell: standard library and torch only,
relative imports only. `install` is called by the bootstrap before the script's first line and imports nothing heavy;
all that concerns torch waits until the script itself has imported it.
"""

from __future__ import annotations

import time
from typing import Any

from .ends import Ends
from .journal import process_line
from .options import Options
from .run import Run


def install(given: dict[str, Any]) -> Run:
    options = Options(given)
    run = Run(options)
    line = process_line()
    run.journal.write(line.pop("kind"), **line)
    Ends(run).install()
    run.imports.install()
    _time_the_import_of_torch(run)
    if options.offline:
        from . import offline

        offline.install(run)
    if options.overlay:
        from . import overlay

        overlay.install(run)
    return run


def _time_the_import_of_torch(run: Run) -> None:
    started: float | None = None  # in the fork of a warm process torch has been imported before

    def begins() -> None:
        nonlocal started
        started = time.monotonic()

    def has_ended(torch: Any) -> None:
        run.import_torch_seconds = 0.0 if started is None else time.monotonic() - started
        from .torch_hooks import install_torch_hooks

        install_torch_hooks(run, torch)

    run.imports.when_imported("torch", has_ended, begins=begins)
