"""Shows an estimate, as `run` and `report` do, and turns its verdict into the exit code."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from foretell.errors import TraceError
from foretell.records import Estimate
from foretell.report import json as json_report

OUT_OF_MEMORY = 3


def show(estimate: Estimate, *, json_target: str | None) -> int:
    """The table on standard output; on standard error when the JSON takes that place."""
    from rich.console import Console

    from foretell.report import text

    # The script's output came first; it may have gone through the same pipe unbuffered.
    sys.stdout.flush()
    if json_target is not None and json_target != "-":
        _write(Path(json_target), json_report.render(estimate))
    text.render(estimate, Console(stderr=json_target == "-", highlight=False))
    if json_target == "-":
        print(json_report.render(estimate), flush=True)
    return OUT_OF_MEMORY if estimate.verdict == "oom" else 0


def _write(path: Path, document: str) -> None:
    try:
        path.write_text(document + "\n")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise TraceError(f"cannot write {path}: {'no room on the disk' if full else error.strerror}.") from None
