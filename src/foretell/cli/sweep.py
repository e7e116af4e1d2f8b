"""`foretell sweep`: what a script needs at each point of a grid of options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from foretell.cli.files import check_targets, write
from foretell.cli.jobs import add_job, job_of, world_size
from foretell.cli.knobs import add_workers, prepare, workers_of
from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.cli.time import add_time
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.jobs import Job
    from foretell.plan.knobs import Knob
    from foretell.plan.sweep import Point
    from foretell.records import Gpu

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """The script runs with every combination of the values, several at a time. Those that do not fit are run
again on a larger card to see what they need. docs/max-batch.md has more.

examples:
  foretell sweep --gpu rtx-4090 --arg=--batch-size=8,16,32,64 --arg=--seq-len=512,1024 train.py
  foretell sweep --gpu a100-80gb --env LAYERS=12,24 --optimizer script,adafactor --html sweep.html train.py
  foretell sweep --gpu a10g --config-key train.yaml:data.batch_size=8,16 --csv - train.py
  foretell sweep --gpu h100 --world-size 16 --config-key ds.json:zero_optimization.stage=2,3 train.py

exit codes: 0 at least one combination fits; 3 none fits; 1 the script itself fails with every one;
            2 wrong usage, a script that does not accept a knob, or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell sweep --arg=NAME=A,B,... [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    knobs = add_knobs(parser, "knobs (one or more)")
    knobs.add_argument(
        "--world-size", metavar="A,B,...",
        help="GPUs of the whole job, of which some are run (--ranks); `foretell scale` finds the smallest number",
    )  # fmt: skip
    add_workers(add_job(parser, has_world_size=False))
    add_time(parser)
    add_output(parser)


def add_knobs(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Add the options of `grid_of`."""
    knobs = parser.add_argument_group(title)
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
    return knobs


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of `check_output` and `put_out`."""
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
    from foretell.cli.show import OUT_OF_MEMORY
    from foretell.plan import sweep_report
    from foretell.plan.knobs import WorldSize
    from foretell.plan.sweep import sweep

    cards = check_output(options)
    grid, workers = grid_of(options), workers_of(options)
    sizes = sizes_of("--world-size", options.world_size)
    if sizes:
        grid.insert(0, (WorldSize(), [str(size) for size in sizes]))
    job = job_of_many(options, sizes)
    found = sweep(
        job, grid, finds_need=not options.no_need, workers=workers, on_point=progress_of(options),
        say=(lambda text: None) if options.quiet else say,
    )  # fmt: skip
    put_out(options, sweep_report, found, cards)
    return 0 if found.fits else OUT_OF_MEMORY


def check_output(options: argparse.Namespace) -> list[Gpu]:
    """Tell what is wrong with the options of the output before anything runs; the cards of --limits."""
    from foretell import gpus
    from foretell.report.static_page import plotly_objects

    check_targets({"--json": options.json, "--csv": options.csv, "--html": options.html})
    if options.json == "-" and options.csv == "-":
        raise UsageError("--json - --csv -: only one of them can go to standard output.")
    if options.html:
        plotly_objects()
    return [gpus.find(name.strip()) for name in options.limits.split(",")] if options.limits else []


def sizes_of(option: str, text: str | None) -> list[int]:
    return [] if text is None else [world_size(size, option) for size in _values(text)]


def job_of_many(options: argparse.Namespace, sizes: Sequence[int]) -> Job:
    """Checked with the largest of the sizes."""
    options.world_size = max(sizes, default=None)
    job = job_of(options, is_output_shown=False, is_note_shown=not sizes)
    if options.gpu is None and not (options.profile or options.quiet):
        say(f"no --gpu given; assuming {job.gpu.name}")
    return job


def progress_of(options: argparse.Namespace) -> Callable[[Sequence[Knob], Point], None]:
    from foretell.plan import sweep_report

    def show(knobs: Sequence[Knob], point: Point) -> None:
        if not options.quiet:
            say(sweep_report.line_of(knobs, point))

    return show


def put_out(options: argparse.Namespace, report: ModuleType, found: object, cards: Sequence[Gpu]) -> None:
    """Print the result, and write it to files."""
    from foretell.cli.terminal import console

    with ignore_broken_pipe():
        report.render(found, console(stderr="-" in (options.json, options.csv)))
        for target, text in ((options.json, report.to_json), (options.csv, report.to_csv)):
            if target == "-":
                print(text(found).rstrip("\n"), flush=True)
    if options.json and options.json != "-":
        write(Path(options.json), report.to_json(found) + "\n")
    if options.csv and options.csv != "-":
        write(Path(options.csv), report.to_csv(found))
    if options.html:
        write(options.html, report.to_html(found, cards=cards))


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
