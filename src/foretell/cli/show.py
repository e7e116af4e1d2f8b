"""Shows an estimate, as `run` and `report` do, and turns its verdict into the exit code."""

from __future__ import annotations

import errno
from pathlib import Path

from foretell.cli.terminal import console, readers_may_leave
from foretell.errors import TraceError
from foretell.records import Estimate
from foretell.report import json as json_report

OUT_OF_MEMORY = 3


def show(estimate: Estimate, *, json_target: str | None) -> int:
    """The table on standard output; on standard error when the JSON takes that place."""
    from foretell.report import text

    if json_target is not None and json_target != "-":
        _write(Path(json_target), json_report.render(estimate))
    with readers_may_leave():
        text.render(estimate, console(stderr=json_target == "-"))
        if json_target == "-":
            print(json_report.render(estimate), flush=True)
    return OUT_OF_MEMORY if estimate.verdict == "oom" else 0


def _write(path: Path, document: str) -> None:
    try:
        path.write_text(document + "\n")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise TraceError(f"cannot write {path}: {'no room on the disk' if full else error.strerror}.") from None
