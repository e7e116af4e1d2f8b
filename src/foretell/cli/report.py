"""`foretell report`: the result of a saved trace, at any time and on any machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretell.cli.files import add_files, check_targets, targets_of, write_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a file written by `foretell run --trace`")
    add_files(parser)


def execute(options: argparse.Namespace) -> int:
    from foretell.analysis.verdict import estimate_of
    from foretell.cli.show import exit_code, show_text
    from foretell.trace import load

    check_targets(targets_of(options), sources=[options.trace])
    trace = load(options.trace)
    estimate = estimate_of(trace)
    show_text(estimate, is_json=options.json == "-")
    write_files(options, trace, estimate)
    return exit_code(estimate)
