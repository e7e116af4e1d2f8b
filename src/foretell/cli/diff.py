"""`foretell diff`: what changed between two runs, largest change first."""

from __future__ import annotations

import argparse
from pathlib import Path

_EPILOG = """\
A and B are each a trace (`foretell run --trace`) or an estimate (`foretell run --json`); traces give more detail.

examples:
  foretell diff main.trace branch.trace
  foretell diff main.json branch.json --fail-over 5%
  foretell diff main.trace branch.trace --fail-over 500MiB --json diff.json --html diff.html

exit codes: 0 compared; 3 growth above --fail-over, or the job no longer fits; 2 the files cannot be compared
"""
_GREW = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("before", type=Path, metavar="A", help="the baseline run")
    parser.add_argument("after", type=Path, metavar="B", help="the run to compare with it")
    parser.add_argument(
        "--fail-over", metavar="SIZE|PERCENT",
        help="exit with code 3 if reserved or device memory grew by more than this, e.g. 200MiB or 5%%",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON; - for standard output")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the comparison as an HTML page")


def execute(options: argparse.Namespace) -> int:
    from rich.text import Text

    from foretell.cli.files import check_targets, write
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.diff import compare, grown_over, json, page, summary_of, text
    from foretell.units import parse_growth

    check_targets({"--json": options.json, "--html": options.html}, sources=[options.before, options.after])
    limit = None if options.fail_over is None else parse_growth(options.fail_over)
    difference = compare(summary_of(options.before), summary_of(options.after))
    if options.json and options.json != "-":
        write(Path(options.json), json.render(difference) + "\n")
    if options.html:
        write(options.html, page.render(difference) + "\n")
    reason = None if limit is None else grown_over(difference, limit)
    with ignore_broken_pipe():
        terminal = console(stderr=options.json == "-")
        text.render(difference, terminal)
        if reason is not None:
            terminal.print(Text.assemble("\n  ", ("over the limit", "bold red"), f" of {options.fail_over}: {reason}"))
        if options.json == "-":
            print(json.render(difference), flush=True)
    return 0 if reason is None else _GREW
