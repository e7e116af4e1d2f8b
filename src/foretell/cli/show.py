"""Shows an estimate, for `run` and `report`, and gives the exit code of its verdict."""

from __future__ import annotations

from foretell.cli.terminal import console, ignore_broken_pipe
from foretell.records import Estimate

OUT_OF_MEMORY = 3
_ENDED_BY = {"script": 1, "interrupted": 130}


def show_text(estimate: Estimate, *, is_json: bool) -> None:
    """Print the table to standard output, or to standard error if standard output carries JSON."""
    from foretell.report import text

    with ignore_broken_pipe():
        text.render(estimate, console(stderr=is_json))


def exit_code(estimate: Estimate) -> int:
    """That of the verdict, unless the script failed or was interrupted."""
    by_verdict = OUT_OF_MEMORY if estimate.verdict == "oom" else 0
    return _ENDED_BY.get(estimate.ended_by.kind, by_verdict) if estimate.ended_by else by_verdict
