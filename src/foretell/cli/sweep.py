"""`foretell sweep`: what a script needs at each point of a grid of options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.cli.files import check_targets, write
from foretell.cli.jobs import add_job, job_of
from foretell.cli.knobs import add_workers, prepare, workers_of
from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.cli.time import add_time
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.plan.knobs import Knob
    from foretell.plan.sweep import Point

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """The script runs with every combination of the values, several at a time. Those that do not fit are run
again on a larger card to see what they need. docs/max-batch.md has more.

examples:
  foretell sweep --gpu rtx-4090 --arg=--batch-size=8,16,32,64 --arg=--seq-len=512,1024 train.py
  foretell sweep --gpu a100-80gb --env LAYERS=12,24 --optimizer script,adafactor --html sweep.html train.py
  foretell sweep --gpu a10g --config-key train.yaml:data.batch_size=8,16 --csv - train.py

exit codes: 0 at least one combination fits; 3 none fits; 1 the script itself fails with every one;
            2 wrong usage, a script that does not accept a knob, or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell sweep --arg=NAME=A,B,... [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    knobs = parser.add_argument_group("knobs (one or more)")
    knobs.add_argument(
        "--arg", metavar="NAME=A,B,...", action="append", default=[],
        help="an option of the script and its values, e.g. --arg=--batch-size=8,16; may be given several times",
    )  # fmt: skip
    knobs.add_argument("--env", metavar="NAME=A,B,...", action="append", default=[], help="an environment variable")
    knobs.add_argument(
        "--config-key", metavar="FILE:KEY=A,B,...", action="append", default=[],
        help="a key of a YAML, JSON or TOML file; your file is not changed",
    )  # fmt: skip
    knobs.add_argument(
        "--dataloader", metavar="A,B,...", help="the batch size of the DataLoader that feeds the training"
    )
    knobs.add_argument(
        "--optimizer", metavar="A,B,...", help="of script (as it is), fused, for-loop, adafactor, 8bit"
    )
    knobs.add_argument("--precision", metavar="A,B,...", help="of script (as it is), bfloat16, float16")
    add_workers(add_job(parser))
    add_time(parser)
    result = parser.add_argument_group("output")
    result.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    result.add_argument("--csv", metavar="FILE", help="write the result as CSV; - for standard output")
    result.add_argument("--html", metavar="FILE", type=Path, help="write an HTML page with curves")
    result.add_argument(
        "--limits", metavar="A,B", help="GPUs whose memory the page shows as lines (default: common ones)"
    )
    result.add_argument(
        "--no-need", action="store_true",
        help="do not run combinations that do not fit again on a larger card to see what they need",
    )  # fmt: skip
    result.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell import gpus
    from foretell.cli.show import OUT_OF_MEMORY
    from foretell.cli.terminal import console
    from foretell.plan import sweep_report
    from foretell.plan.sweep import sweep
    from foretell.report.static_page import plotly_objects

    check_targets({"--json": options.json, "--csv": options.csv, "--html": options.html})
    if options.json == "-" and options.csv == "-":
        raise UsageError("--json - --csv -: only one of them can go to standard output.")
    grid, workers = grid_of(options), workers_of(options)
    cards = [gpus.find(name.strip()) for name in options.limits.split(",")] if options.limits else []
    if options.html:
        plotly_objects()  # a missing package is told before anything runs
    job = job_of(options, is_output_shown=False)
    if options.gpu is None and not (options.profile or options.quiet):
        say(f"no --gpu given; assuming {job.gpu.name}")

    def show(knobs: Sequence[Knob], point: Point) -> None:
        if not options.quiet:
            say(sweep_report.line_of(knobs, point))

    found = sweep(
        job, grid, finds_need=not options.no_need, workers=workers, on_point=show,
        say=(lambda text: None) if options.quiet else say,
    )  # fmt: skip
    is_stdout_taken = "-" in (options.json, options.csv)
    with ignore_broken_pipe():
        sweep_report.render(found, console(stderr=is_stdout_taken))
        for target, text in ((options.json, sweep_report.to_json), (options.csv, sweep_report.to_csv)):
            if target == "-":
                print(text(found).rstrip("\n"), flush=True)
    if options.json and options.json != "-":
        write(Path(options.json), sweep_report.to_json(found) + "\n")
    if options.csv and options.csv != "-":
        write(Path(options.csv), sweep_report.to_csv(found))
    if options.html:
        write(options.html, sweep_report.to_html(found, cards=cards))
    return 0 if found.fits else OUT_OF_MEMORY


def grid_of(options: argparse.Namespace) -> list[tuple[Knob, list[str]]]:
    """The knobs and their values; options, variables and keys in the order they are given."""
    from foretell.plan.knobs import Argument, ConfigKey, LoaderBatch, Setting, Variable

    grid: list[tuple[Knob, list[str]]] = []
    for option, kind in (("arg", Argument), ("env", Variable), ("config_key", ConfigKey)):
        for text in getattr(options, option):
            name, sign, values = (text or "").rpartition("=")
            if not sign or not name:
                flag = f"--{option.replace('_', '-')}"
                raise UsageError(f"{flag} {text}: must be a name and values, as in {flag}=NAME=8,16,32.")
            grid.append((kind(name), _values(values)))
    if options.dataloader is not None:
        grid.append((LoaderBatch(), _values(options.dataloader)))
    if options.optimizer is not None:
        grid.append((Setting("optimizer"), _values(options.optimizer)))
    if options.precision is not None:
        grid.append((Setting("precision"), _values(options.precision)))
    return grid


def _values(text: str) -> list[str]:
    return [value.strip() for value in text.split(",")]
