"""`foretell report`: the result of a saved trace, later and on another machine."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a file written by `foretell run --trace`")
    parser.add_argument("--json", metavar="FILE", help="write the estimate as JSON; - is the standard output")


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.show import show
    from foretell.trace import load
    from foretell.verdict import estimate_of

    return show(estimate_of(load(options.trace)), json_target=options.json)
