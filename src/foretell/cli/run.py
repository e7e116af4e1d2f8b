"""`foretell run`: runs a script on a virtual GPU and shows the estimate."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretell import disk
from foretell.cli.files import (
    add_files,
    check_targets,
    folder,
    is_stdout_taken,
    targets_of,
    write_files,
    write_trace,
)
from foretell.cli.jobs import add_job, job_of, prepare, progress
from foretell.cli.orders import add_orders, orders_of
from foretell.cli.settings import add_emit, check_emit, print_settings
from foretell.cli.terminal import say
from foretell.cli.time import add_price, add_time
from foretell.errors import ForetellError, UnsupportedError, UsageError
from foretell.namespaces.files import copy_tree

if TYPE_CHECKING:
    from foretell.api import Run
    from foretell.jobs import Job
    from foretell.records import Estimate
    from foretell.trace import Trace

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """SCRIPT.py runs with the Python that foretell is installed in. To use another one, name it:
foretell run -- python train.py. Everything after the script is passed to the script.

examples:
  foretell run --gpu rtx-3060 train.py --batch-size 64
  foretell run --gpu "RTX 4090" --steps 10 -m my_package.train --config small.yaml
  foretell run --gpu 24GiB,sm89 --json - train.py > estimate.json
  foretell run --gpu rtx-3060 --report train.html --snapshot train.pickle train.py
  foretell run --gpu h100 --trace train.trace -- torchrun --nproc-per-node 2 train.py
  foretell run --gpu h100 --world-size 1024 --ranks auto train.py
  foretell run --gpu h100 --ranks 0 -- torchrun --nnodes 4 --nproc-per-node 8 train.py

exit codes: 0 the job fits; 3 it would run out of memory; 1 the script itself failed;
            2 wrong usage or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell run [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    job = add_job(parser)
    add_orders(job)
    job.add_argument(
        "--explain", action="store_true",
        help="show what the interval is made of; CPU engine: also how much each of its rules adds to the peaks",
    )  # fmt: skip
    job.add_argument(
        "--interval", choices=["quick", "simulated"], default="quick",
        help="simulated: run the job again with other choices (workspaces, order of events and batches, unknown sizes) "
        "and see how far its peak moves; takes up to twice the time (default: quick)",
    )  # fmt: skip
    result = parser.add_argument_group("output")
    add_files(result)
    add_emit(result)
    result.add_argument(
        "--keep-writes", metavar="DIR", type=folder, help="keep the files the script writes, in this folder"
    )
    result.add_argument("--trace", metavar="FILE", type=Path, help="save the recorded run, for `foretell report`")
    result.add_argument(
        "--advise", action="store_true",
        help="rerun with gradient checkpointing, mixed precision and other changes, and show what each saves",
    )  # fmt: skip
    add_price(add_time(parser))
    result.add_argument(
        "--no-need", action="store_true",
        help="if it runs out of memory, do not run it again on a larger card to find out how much it needs",
    )  # fmt: skip
    result.add_argument(
        "--verbose", action="store_true", help="show the script's traceback also if it runs out of memory"
    )
    result.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell import api, repeats
    from foretell.cli.show import show_causes, show_text

    check_targets(targets_of(options) | {"--trace": options.trace})
    check_emit(options)
    if options.keep_writes:
        _make_folder(options.keep_writes)
    if options.orders is not None and options.steps == "worst":
        raise UsageError("--orders needs all batches in the recorded run: use --steps all instead of --data-only.")
    job = job_of(options)
    if options.gpu is None and not (options.profile or options.quiet):
        say(f"no --gpu given; assuming {job.gpu.name}")
    with api.scratch() as folder:
        note = _quietly if options.quiet else say
        try:
            run = api.run(job, directory=folder, on_progress=None if options.quiet else progress())
        except api.Interrupted as interrupted:
            run = interrupted.run
        show = None if options.quiet else progress()
        run = api.follow_up(run, need=not options.no_need, say=note, on_progress=show)
        if options.trace:
            write_trace(run.trace, options.trace)
        if options.keep_writes:
            _keep_writes(folder / "overlay", options.keep_writes)
    estimate, is_json = _with_orders(options, run.trace, _estimate(run)), is_stdout_taken(options)
    if options.interval == "simulated":
        estimate = repeats.simulated(run, estimate, say=note)
    show_text(estimate, is_json=is_json)
    if options.advise and estimate.complete:
        try:
            estimate = _advise(job, estimate, is_json=is_json, note=note)
        except (KeyboardInterrupt, ForetellError):
            write_files(options, run.trace, estimate)
            raise
    if options.explain:
        show_causes(estimate, is_json=is_json)
        if run.trace.engine == "cpu":
            _explain(run.trace, is_json=is_json)
    write_files(options, run.trace, estimate)
    return print_settings(options, estimate)


def _quietly(text: str) -> None:
    """Say nothing (`--quiet`)."""


def _estimate(run: Run) -> Estimate:
    """Also of a script that failed or was interrupted, if enough of it was seen."""
    try:
        return run.estimate_so_far
    except ForetellError as error:
        if run.trace.is_interrupted:
            say(str(error))
            raise KeyboardInterrupt from None
        raise


def _with_orders(options: argparse.Namespace, trace: Trace, estimate: Estimate) -> Estimate:
    if options.orders is None or not estimate.complete:
        return estimate
    if estimate.oom is not None:
        why = "it runs out of memory in the recorded order already"
    else:
        try:
            return replace(estimate, orders=orders_of(options, trace, estimate))
        except UnsupportedError as error:
            why = str(error).rstrip(".")
    return replace(estimate, caveats=(*estimate.caveats, f"no other orders of batches were tried: {why}"))


def _make_folder(target: Path) -> None:
    """Before the run: afterwards, what the run has found would be lost."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--keep-writes {target}: {error.strerror or error}.") from None
    problem = disk.why_not_writable(target / "file")
    if problem is not None:
        raise UsageError(f"--keep-writes {target}: {problem}.")


def _keep_writes(overlay: Path, target: Path) -> None:
    try:
        if overlay.is_dir():
            copy_tree(str(overlay), str(target))
    except OSError as error:
        raise UsageError(f"cannot keep the script's files in {target}: {error.strerror or error}.") from None


def _advise(job: Job, estimate: Estimate, *, is_json: bool, note: Callable[[str], None]) -> Estimate:
    """Runs after the estimate has been shown, because it takes a while."""
    from foretell.advice import advise
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.report import advice_text

    findings = advise(job, estimate, say=note)
    with ignore_broken_pipe():
        advice_text.render(
            findings.advice,
            reserved_bytes=findings.reserved_bytes,
            is_oom=estimate.oom is not None,
            not_tried=findings.not_tried,
            console=console(stderr=is_json),
        )
    return replace(estimate, advice=tuple(findings.advice))


def _explain(trace: Trace, *, is_json: bool) -> None:
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.engines.imported import explain, layers

    with ignore_broken_pipe():
        explain.render(layers.layers_of(trace), console(stderr=is_json))
