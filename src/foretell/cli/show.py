"""Shows an estimate, as `run` and `report` do, and turns its verdict into the exit code."""

from __future__ import annotations

from foretell.cli.terminal import console, readers_may_leave
from foretell.records import Estimate

OUT_OF_MEMORY = 3


def show_text(estimate: Estimate, *, is_json: bool) -> None:
    """The table on standard output; on standard error when JSON takes that place."""
    from foretell.report import text

    with readers_may_leave():
        text.render(estimate, console(stderr=is_json))


def exit_code(estimate: Estimate) -> int:
    return OUT_OF_MEMORY if estimate.verdict == "oom" else 0
