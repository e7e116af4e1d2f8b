"""`foretell fit`: the GPUs a job fits on."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from foretell.cli.files import check_targets, is_stdout_taken, write
from foretell.cli.jobs import add_job, job_of, prepare
from foretell.cli.settings import add_emit, check_emit, print_settings
from foretell.cli.terminal import say
from foretell.cli.time import add_time

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """Runs the job on virtual GPUs: as few as show what it does on all of them, unless --exact is given.

examples:
  foretell fit train.py --batch-size 64
  foretell fit --class datacenter --min-memory 24GB train.py
  foretell fit --gpus rtx-3060,rtx-4090,24GiB,sm86 train.py
  foretell fit --gpus a100-80gb,h100 --mig --json fit.json train.py
  foretell fit --time --class datacenter train.py
  foretell fit --class datacenter --emit skypilot train.py

exit codes: 0 the job fits on at least one of the GPUs; 3 on none; 1 the script itself failed on all of them;
            2 wrong usage or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell fit [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    cards = parser.add_argument_group("GPUs")
    cards.add_argument(
        "--gpus", metavar="NAMES", help="only these, separated by commas (default: all of `foretell gpus`)"
    )
    cards.add_argument("--min-memory", metavar="SIZE", help="only GPUs sold with at least this much, e.g. 24GB")
    cards.add_argument("--max-memory", metavar="SIZE", help="only GPUs sold with at most this much")
    cards.add_argument(
        "--class", dest="gpu_class", choices=["consumer", "workstation", "datacenter"], help="only GPUs of this class"
    )
    cards.add_argument(
        "--mig", action="store_true", help="also the MIG slices of these GPUs, such as a100-80gb:3g.40gb"
    )
    cards.add_argument(
        "--exact", action="store_true", help="run the job on every GPU, instead of once for all that are alike"
    )
    add_job(parser, has_gpu=False)
    add_time(parser)
    result = parser.add_argument_group("output")
    result.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    add_emit(result)
    result.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.plan import fit_text
    from foretell.plan.fit import fit_job, select

    check_targets({"--json": options.json})
    check_emit(options)
    cards = select(
        None if options.gpus is None else _names(options.gpus),
        min_memory=options.min_memory,
        max_memory=options.max_memory,
        gpu_class=options.gpu_class,
        mig=options.mig,
    )
    largest = max(cards, key=lambda gpu: gpu.total_bytes)
    job = job_of(options, gpu=largest, is_output_shown=False)
    found = fit_job(job, cards, is_exact=options.exact, say=(lambda text: None) if options.quiet else say)
    with ignore_broken_pipe():
        if options.json == "-":
            print(found.to_json(), flush=True)
        else:
            fit_text.render(found, console(stderr=is_stdout_taken(options)))
    if options.json and options.json != "-":
        write(Path(options.json), found.to_json() + "\n")
    if options.emit is None or found.smallest is None:
        return 3 if found.smallest is None else 0
    return print_settings(options, found.estimate)


def _names(text: str) -> list[str]:
    """At commas, except those inside a description such as 24GiB,sm89,128sms."""
    return [name.strip() for name in re.split(r",(?!\s*(?:sm|cc)[_ ]?[0-9]|\s*[0-9]+ ?sms?\b)", text)]
