"""Records the user's process: writes a journal and a memory history into the capture folder.

Runs inside the user's interpreter, perhaps in an environment without foretell: standard library and torch only,
relative imports only. The bootstrap calls `install` before the script's first line, and nothing heavy is imported;
hooks into torch wait until the script itself has imported it.
"""

from __future__ import annotations

import time
from typing import Any

from . import own_frames
from .capture import Capture
from .guard.network import Network
from .journal import this_process
from .options import Options
from .watch.process_end import ProcessEnd


def install(given: dict[str, Any]) -> Capture:
    options = Options(given)
    capture = Capture(options)
    capture.journal.write("process", **this_process())
    network = Network()
    end = ProcessEnd(capture, network)
    end.install()
    capture.imports.install(capture.patches)
    own_frames.install(capture)
    _when_torch_is_imported(capture, end)
    from .guard import children, offline

    children.install(capture)
    offline.install(capture)
    if options.offline:
        network.install(capture)
    if options.isolation == "kernel":
        from .files import layers

        layers.install(capture)
    elif options.isolation != "none":
        from .files import overlay

        overlay.install(capture)
    return capture


def _when_torch_is_imported(capture: Capture, end: ProcessEnd) -> None:
    started: float | None = None  # in the fork of a warm process torch is already imported

    def begins() -> None:
        nonlocal started
        started = time.monotonic()

    def has_ended(torch: Any) -> None:
        capture.import_torch_seconds = 0.0 if started is None else time.monotonic() - started
        from .start.torch_hooks import install_torch_hooks

        install_torch_hooks(capture, torch, end)

    capture.imports.when_imported("torch", has_ended, begins=begins)
