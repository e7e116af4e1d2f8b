"""`foretell max`: the largest value of an integer with which a script fits."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.cli.files import check_targets, is_stdout_taken, write
from foretell.cli.jobs import add_job, job_of
from foretell.cli.knobs import add_knob, add_workers, knob_of, prepare, workers_of
from foretell.cli.settings import add_emit, check_emit, print_settings
from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.plan.maximum import Evaluation, Maximum

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """The script runs with one value after another, several at a time, until the largest that fits is found. It
fits if the script does on a card with that memory, less --safety; the next values above it have been tried too.
docs/max-batch.md explains the search.

examples:
  foretell max --gpu rtx-4090 --arg=--seq-len --multiple-of 64 train.py --batch-size 4
  foretell max --gpu a100-80gb --env WIDTH --min 256 --max 8192 train.py

exit codes: 0 found; 1 the script itself fails with every value; 2 wrong usage, no value of the range fits,
            all up to --max do, a script that does not accept the knob or ignores it, or an unsupported
            environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell max --arg=NAME [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    add_search(parser)


def execute(options: argparse.Namespace) -> int:
    return search(options, key=None)


def add_search(parser: argparse.ArgumentParser, *, has_batch: bool = False) -> None:
    """Add all options of `search`. `has_batch`: the value is a batch size."""
    add_knob(parser)
    values = parser.add_argument_group("values")
    values.add_argument("--min", metavar="N", default="1", help="the smallest value (default: 1)")
    values.add_argument("--max", metavar="N", help="the largest value (default: 1048576)")
    values.add_argument("--multiple-of", metavar="N", default="1", help="only multiples of this (default: 1)")
    values.add_argument(
        "--safety", metavar="PERCENT|SIZE", default="0",
        help="leave this part of the GPU free, e.g. 5%% or 500MiB (default: 0)",
    )  # fmt: skip
    values.add_argument(
        "--safe", action="store_true",
        help="also what to request from a scheduler must fit, which is enough for 99%% of runs",
    )  # fmt: skip
    add_workers(add_job(parser))
    result = parser.add_argument_group("output")
    result.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    add_emit(result, has_batch=has_batch)
    result.add_argument("--quiet", action="store_true", help="do not show progress")


def search(options: argparse.Namespace, *, key: str | None) -> int:
    """`key`: the name of the value in the JSON; None: that of the knob."""
    from foretell.cli.terminal import console
    from foretell.plan import maximum_report
    from foretell.plan.functions import safety_bytes
    from foretell.plan.maximum import maximum

    check_targets({"--json": options.json})
    check_emit(options)
    knob, workers = knob_of(options), workers_of(options)
    low, multiple_of = integer("--min", options.min), integer("--multiple-of", options.multiple_of)
    high = None if options.max is None else integer("--max", options.max)
    job = job_of(options, is_output_shown=False)
    margin = safety_bytes(options.safety, job)
    if options.gpu is None and not (options.profile or options.quiet):
        say(f"no --gpu given; assuming {job.gpu.name}")

    def show(evaluation: Evaluation) -> None:
        if not options.quiet:
            say(maximum_report.line_of(knob, evaluation))

    found = maximum(
        job, knob, low=low, high=high, multiple_of=multiple_of, safety_bytes=margin, is_request=options.safe,
        workers=workers, say=(lambda text: None) if options.quiet else say, on_evaluation=show,
    )  # fmt: skip
    is_json = options.json == "-"
    with ignore_broken_pipe():
        maximum_report.render(found, console(stderr=is_stdout_taken(options)))
        if is_json:
            print(maximum_report.to_json(found, key=key), flush=True)
    if options.json and not is_json:
        write(Path(options.json), maximum_report.to_json(found, key=key) + "\n")
    code = 0
    if found.value is None or (found.above == "range" and high is not None):
        say(f"error: {_wrong_range(found)}")
        code = UsageError.exit_code
    if options.emit is None or found.estimate is None:
        return code
    estimate = replace(found.estimate, caveats=(*found.estimate.caveats, *found.notes))
    return print_settings(options, estimate, batch_size=found.value if options.has_batch else None) or code


def _wrong_range(found: Maximum) -> str:
    """Why the range does not contain the answer, and what to give instead."""
    name, first, last = found.knob.name, found.values[0], found.values[-1]
    if found.value is not None:
        return f"{name}: every value tried up to --max {last} fits; give a larger --max, or leave it out."
    remedy = f"give a --min below {first}, or a larger GPU." if first > 1 else "give a larger GPU."
    return f"{name}: no value from {first} to {last} fits; {remedy}"


def integer(option: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise UsageError(f"{option} {text}: must be an integer.")
    return int(text)

