"""`foretell report`: the result of a saved trace, at any time and on any machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretell.cli.files import add_files, check_targets, is_stdout_taken, targets_of, write_files
from foretell.cli.settings import add_emit, check_emit, print_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a file written by `foretell run --trace`")
    parser.add_argument("--explain", action="store_true", help="show what the interval is made of")
    add_files(parser)
    add_emit(parser)


def execute(options: argparse.Namespace) -> int:
    from foretell.analysis.verdict import estimate_of
    from foretell.cli.show import show_causes, show_text
    from foretell.trace import load

    check_targets(targets_of(options), sources=[options.trace])
    check_emit(options)
    trace = load(options.trace)
    estimate = estimate_of(trace)
    show_text(estimate, is_json=is_stdout_taken(options))
    if options.explain:
        show_causes(estimate, is_json=is_stdout_taken(options))
    write_files(options, trace, estimate)
    return print_settings(options, estimate)
