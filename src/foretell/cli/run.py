"""`foretell run`: runs a script on a virtual GPU and shows the estimate."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretell.cli.files import add_files, check_targets, folder, targets_of, write_files, write_trace
from foretell.cli.terminal import say
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from foretell.api import Run
    from foretell.jobs import Job, Steps
    from foretell.records import Engine, Estimate
    from foretell.runs import Progress
    from foretell.trace import Trace

_HINT_SECONDS = 10
_EPILOG = """SCRIPT.py runs with the Python that foretell is installed in. To use another one, name it:
foretell run -- python train.py. Everything after the script is passed to the script.

examples:
  foretell run --gpu rtx-3060 train.py --batch-size 64
  foretell run --gpu "RTX 4090" --steps 10 -m my_package.train --config small.yaml
  foretell run --gpu 24GiB,sm89 --json - train.py > estimate.json
  foretell run --gpu rtx-3060 --report train.html --snapshot train.pickle train.py
  foretell run --gpu h100 --trace train.trace -- accelerate launch --num_processes 1 train.py

exit codes: 0 the job fits; 3 it would run out of memory; 1 the script itself failed;
            2 wrong usage or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell run [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    card = parser.add_argument_group("GPU")
    card.add_argument(
        "--gpu", metavar="NAME", help="a GPU from `foretell gpus`, or MEMORY,smNN, e.g. 24GiB,sm89 (default: a100-80gb)"
    )
    card.add_argument(
        "--context",
        metavar="SIZE",
        help="memory of an empty CUDA process on your machine, e.g. 430MiB (default: estimated)",
    )
    card.add_argument(
        "--profile", metavar="FILE", type=Path,
        help="use figures measured by `foretell calibrate` instead of built-in ones",
    )  # fmt: skip
    card.add_argument(
        "--used-by-others", metavar="SIZE", default="0",
        help="memory already used by other processes, such as a desktop, e.g. 800MiB (default: 0)",
    )  # fmt: skip
    card.add_argument(
        "--events", choices=["late", "early"], default="late",
        help="when work on a second stream completes: as late as on a real GPU (default), or at once",
    )  # fmt: skip
    job = parser.add_argument_group("run")
    job.add_argument(
        "--steps", metavar="N|auto|all", default="auto",
        help="training steps to run; auto: at least 3, until the peak stops growing (default)",
    )  # fmt: skip
    job.add_argument(
        "--assume", choices=["low", "typical", "high"], default="typical",
        help="if an unknown value determines a size (a mask, detected boxes), assume none, half or all of the elements "
        "(default: typical)",
    )  # fmt: skip
    job.add_argument("--timeout", metavar="SECONDS", type=float, help="stop the run after this time")
    job.add_argument("--keep-init", action="store_true", help="do not skip weight initialization")
    job.add_argument(
        "--keep-writes", metavar="DIR", type=folder, help="keep the files the script writes, in this folder"
    )
    job.add_argument(
        "--isolation", choices=["auto", "kernel", "python", "none"], default="auto",
        help="what protects your files: the kernel (namespaces), replaced Python functions, or nothing; auto: the best "
        "that works here (default)",
    )  # fmt: skip
    job.add_argument(
        "--online", action="store_true",
        help="allow downloads; trackers and uploads still send nothing (default: no network but loopback)",
    )  # fmt: skip
    job.add_argument(
        "--engine", choices=["auto", "virtual", "cpu"], default="auto",
        help="virtual: a CUDA build of torch on a virtual GPU; cpu: any torch build; auto: depends on the torch build",
    )  # fmt: skip
    job.add_argument(
        "--execute", action="store_true",
        help="CPU engine: compute real values on the CPU; slow, but every value is known",
    )  # fmt: skip
    job.add_argument(
        "--explain", action="store_true", help="CPU engine: show how much each of its rules adds to the peaks"
    )
    result = parser.add_argument_group("output")
    add_files(result)
    result.add_argument("--trace", metavar="FILE", type=Path, help="save the recorded run, for `foretell report`")
    result.add_argument(
        "--advise", action="store_true",
        help="rerun with gradient checkpointing, mixed precision and other changes, and show what each saves",
    )  # fmt: skip
    result.add_argument(
        "--no-need", action="store_true",
        help="if it runs out of memory, do not run it again on a larger card to find out how much it needs",
    )  # fmt: skip
    result.add_argument(
        "--verbose", action="store_true", help="show the script's traceback also if it runs out of memory"
    )
    result.add_argument("--quiet", action="store_true", help="do not show progress")
    parser.add_argument("job", nargs="*", help=argparse.SUPPRESS)


def prepare(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Marks where the user's command begins, because argparse would take its options for ours."""
    takes_value = {o for action in parser._actions for o in action.option_strings if action.nargs is None}
    at = words.index("run") + 1
    while at < len(words):
        word = words[at]
        if word == "--":
            return words
        if not word.startswith("-") or word in ("-", "-m"):
            break
        at += 2 if word in takes_value else 1
    return [*words[:at], "--", *words[at:]] if at < len(words) else words


def execute(options: argparse.Namespace) -> int:
    from foretell import api
    from foretell.cli.show import exit_code, show_text

    check_targets(targets_of(options) | {"--trace": options.trace})
    job = _job(options)
    if options.gpu is None and not (options.profile or options.quiet):
        say(f"no --gpu given; assuming {job.gpu.name}")
    with api.scratch() as folder:
        note = _quietly if options.quiet else say
        try:
            run = api.run(job, directory=folder, on_progress=None if options.quiet else _progress())
        except api.Interrupted as interrupted:
            run = interrupted.run
        if not options.no_need:
            run = api.find_need(run, say=note, on_progress=None if options.quiet else _progress())
        if options.trace:
            write_trace(run.trace, options.trace)
        if options.keep_writes:
            _keep_writes(folder / "overlay", options.keep_writes)
    estimate, is_json = _estimate(run), options.json == "-"
    show_text(estimate, is_json=is_json)
    if options.advise and estimate.complete:
        try:
            estimate = _advise(job, estimate, is_json=is_json, note=note)
        except (KeyboardInterrupt, ForetellError):
            write_files(options, run.trace, estimate)
            raise
    if options.explain:
        _explain(run.trace, is_json=is_json)
    write_files(options, run.trace, estimate)
    return exit_code(estimate)


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


def _job(options: argparse.Namespace) -> Job:
    """From the command line; what can be seen to be wrong with it is said before anything runs."""
    from foretell import api, calibration, gpus
    from foretell.jobs import CaptureOptions, Job
    from foretell.runs import resolve
    from foretell.units import parse_bytes

    profile = calibration.load(options.profile) if options.profile else None
    capture = CaptureOptions(
        steps=_steps(options.steps),
        skip_init=not (options.keep_init or options.execute),
        isolation=options.isolation,
        keep_writes=options.keep_writes is not None,
        offline=not options.online,
        events=options.events,
        assume=options.assume,
        engine=_engine(options),
        execute=options.execute,
        timeout_seconds=options.timeout,
        verbose=options.verbose,
        stdout="stderr" if options.json == "-" else "inherit",
    )
    job = Job(
        command=tuple(options.job),
        gpu=gpus.find((profile.device_name if profile else api.DEFAULT_GPU) if options.gpu is None else options.gpu),
        context_bytes=None if options.context is None else parse_bytes(options.context),
        used_by_others_bytes=parse_bytes(options.used_by_others),
        profile=profile,
        options=capture,
    )
    note = resolve(job.command, engine=capture.engine).note
    if note and not options.quiet:
        say(note)
    return job


def _keep_writes(overlay: Path, target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        if overlay.is_dir():
            shutil.copytree(overlay, target, dirs_exist_ok=True, symlinks=True)
    except OSError as error:
        raise UsageError(f"cannot keep the script's files in {target}: {error.strerror or error}.") from None


def _engine(options: argparse.Namespace) -> Engine | Literal["auto"]:
    """`--execute` and `--explain` apply to the CPU engine, and select it."""
    chosen: Engine | Literal["auto"] = options.engine
    for option in ("execute", "explain"):
        if getattr(options, option):
            if chosen == "virtual":
                raise UsageError(f"--{option} works only with the CPU engine; remove --engine virtual.")
            chosen = "cpu"
    return chosen


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


def _steps(text: str) -> Steps:
    if text == "auto":
        return "auto"
    if text == "all":
        return "all"
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"--steps {text}: must be a number (1 or more), auto or all.")
    return int(text)


_FIRST_STEPS = 5
_DOING = {
    "start": "torch not imported yet",
    "torch": "nothing on the GPU yet",
    "cuda": "no model called yet",
    "forward": "in a forward pass",
    "backward": "in a backward pass",
    "optimizer": "in the optimizer",
    "evaluation": "evaluating",
    "other": "between passes",
}


def _progress() -> Callable[[Progress], None]:
    """A line on each of the first steps, and every ten seconds."""
    from foretell.units import format_bytes

    last_shown = (-1, "")
    last_seconds = 0.0
    is_hinted = False

    def show(progress: Progress) -> None:
        nonlocal last_shown, last_seconds, is_hinted
        now = (progress.num_steps, progress.phase or "")
        pause = 3 if progress.num_operators else 10
        if progress.is_on_cpu and progress.seconds >= _HINT_SECONDS and not is_hinted:
            is_hinted = True
            say(
                "the script trains, but has put nothing on the GPU. Does it need an option such as --device, --cuda or "
                "--accel? Is CUDA_VISIBLE_DEVICES empty?"
            )
        is_news = now[0] != last_shown[0] and now[0] <= _FIRST_STEPS
        if not is_news and progress.seconds - last_seconds < pause:
            return
        last_shown, last_seconds = now, progress.seconds
        if progress.num_steps:
            reserved = f", reserved {format_bytes(progress.reserved_bytes)}" if progress.reserved_bytes else ""
            text = f"step {progress.num_steps - 1} done{reserved}"
        else:
            text = f"no step finished yet, {_DOING[progress.phase or progress.stage]}"
        if progress.num_operators:
            text += f", {progress.num_operators:,} operators computed"
        if progress.remaining_seconds is not None:
            text += f", about {progress.remaining_seconds:.0f} s left"
        say(f"{progress.seconds:.0f} s, {text}")

    return show
