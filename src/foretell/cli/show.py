"""Shows an estimate, for `run` and `report`, and gives the exit code of its verdict."""

from __future__ import annotations

import sys

from foretell.cli.main import INTERRUPTED
from foretell.cli.terminal import console, fresh_line, ignore_broken_pipe
from foretell.records import Estimate

OUT_OF_MEMORY = 3
SCRIPT_FAILED = 1


def show_text(estimate: Estimate, *, is_json: bool) -> None:
    """Print the table to standard output, or to standard error if standard output carries JSON."""
    from foretell.report import text

    with ignore_broken_pipe():
        stream = sys.stderr if is_json else sys.stdout
        stream.write(fresh_line(stream))
        text.render(estimate, console(stderr=is_json))


def show_causes(estimate: Estimate, *, is_json: bool) -> None:
    """Print what the interval and the request are made of (`--explain`)."""
    from foretell.report import causes

    with ignore_broken_pipe():
        console(stderr=is_json).print(causes.render(estimate))


def exit_code(estimate: Estimate) -> int:
    """That of the verdict, if there is one and the run was not interrupted."""
    if estimate.ended_by is not None and estimate.ended_by.kind == "interrupted":
        return INTERRUPTED
    if not estimate.has_verdict:
        return SCRIPT_FAILED
    return OUT_OF_MEMORY if estimate.verdict == "oom" else 0
