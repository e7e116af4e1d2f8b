"""`foretell diff`: what changed between two runs of a script, the largest first."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from foretell.errors import UsageError

_EPILOG = """\
A and B are each a trace (`foretell run --trace`) or an estimate (`foretell run --json`); a trace says more.

examples:
  foretell diff main.trace branch.trace
  foretell diff main.json branch.json --fail-over 5%
  foretell diff main.trace branch.trace --fail-over 500MiB --json diff.json --html diff.html

exit codes: 0 compared; 3 more than --fail-over allows, or it no longer fits; 2 not files that can be compared
"""
_GREW = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("before", type=Path, metavar="A", help="the run to compare with")
    parser.add_argument("after", type=Path, metavar="B", help="the run that is compared")
    parser.add_argument(
        "--fail-over", metavar="SIZE|PERCENT",
        help="exit code 3 when reserved or device memory grew by more, as in 200MiB or 5%%",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the difference as JSON; - is the standard output")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write it as a page")


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.files import check_targets, write
    from foretell.cli.terminal import console, readers_may_leave
    from foretell.diff import compare, grown_over, json, page, summary_of, text

    check_targets({"--json": options.json, "--html": options.html}, sources=[options.before, options.after])
    limit = None if options.fail_over is None else _limit(options.fail_over)
    difference = compare(summary_of(options.before), summary_of(options.after))
    if options.json and options.json != "-":
        write(Path(options.json), json.render(difference) + "\n")
    if options.html:
        write(options.html, page.render(difference) + "\n")
    reason = None if limit is None else grown_over(difference, limit)
    with readers_may_leave():
        terminal = console(stderr=options.json == "-")
        text.render(difference, terminal)
        if reason is not None:
            terminal.print(f"\n  [bold red]over the limit[/] of {options.fail_over}: {reason}")
        if options.json == "-":
            print(json.render(difference), flush=True)
    return 0 if reason is None else _GREW


def _limit(text: str) -> int | float:
    """Bytes, or as a float a share of what was there."""
    from foretell.units import parse_bytes

    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is not None:
        return float(match[1]) / 100
    try:
        return parse_bytes(text)
    except UsageError:
        raise UsageError(f"--fail-over {text}: give a size or a percentage, as in 200MiB or 5%.") from None
