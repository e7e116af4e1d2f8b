"""`foretell run`: a script on a virtual GPU, end to end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretell.cli.files import add_files, check_targets, write_files
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.advice import Job
    from foretell.capture import Progress
    from foretell.capture.launch import Steps
    from foretell.records import Engine, Estimate
    from foretell.trace import Trace

_EPILOG = """SCRIPT.py runs with the Python foretell is installed in; to use another one, name it:
foretell run -- python train.py. All that follows the script is the script's.

examples:
  foretell run --gpu rtx-3060 train.py --batch-size 64
  foretell run --gpu "RTX 4090" --steps 10 -m my_package.train --config small.yaml
  foretell run --gpu 24GiB,sm89 --json - train.py > estimate.json
  foretell run --gpu rtx-3060 --report train.html --snapshot train.pickle train.py
  foretell run --gpu h100 --trace train.trace -- accelerate launch --num_processes 1 train.py

exit codes: 0 it fits; 3 it would run out of memory; 1 the script failed by itself;
            2 wrong usage or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell run [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    card = parser.add_argument_group("the card")
    card.add_argument(
        "--gpu", metavar="NAME", help="a card of `foretell gpus`, or MEMORY,smNN as in 24GiB,sm89 (default: a100-80gb)"
    )
    card.add_argument(
        "--context",
        metavar="SIZE",
        help="what an empty CUDA process takes on your machine, as in 430MiB (default: a guess)",
    )
    card.add_argument(
        "--profile", metavar="FILE", type=Path,
        help="what `foretell calibrate` measured on such a card, instead of guesses",
    )  # fmt: skip
    card.add_argument(
        "--used-by-others", metavar="SIZE", default="0",
        help="what a desktop or another job has of the card already, as in 800MiB (default: nothing)",
    )  # fmt: skip
    card.add_argument(
        "--events", choices=["late", "early"], default="late",
        help="when work on a second stream is done: as late as a real card may be (default), or at once",
    )  # fmt: skip
    job = parser.add_argument_group("the run")
    job.add_argument(
        "--steps", metavar="N|auto|all", default="auto",
        help="training steps to run; auto: 3 or more, until the peak no longer grows (default)",
    )  # fmt: skip
    job.add_argument(
        "--assume", choices=["low", "typical", "high"], default="typical",
        help="where a value nobody knows decides a size (a mask, detected boxes): take none, half or all",
    )  # fmt: skip
    job.add_argument("--timeout", metavar="SECONDS", type=float, help="end a run that takes longer")
    job.add_argument("--keep-init", action="store_true", help="do not skip weight initialisation")
    job.add_argument("--keep-writes", metavar="DIR", type=Path, help="keep what the script wrote, in this folder")
    job.add_argument("--online", action="store_true", help="let experiment trackers and model hubs go online")
    job.add_argument(
        "--engine", choices=["auto", "virtual", "cpu"], default="auto",
        help="virtual: the CUDA build of torch on a virtual GPU; cpu: any torch; auto: by the torch that is there",
    )  # fmt: skip
    job.add_argument(
        "--execute", action="store_true",
        help="with the CPU engine: really compute, on the CPU; slow, but every value is known",
    )  # fmt: skip
    job.add_argument(
        "--explain", action="store_true", help="with the CPU engine: show what each of its rules adds to the peaks"
    )
    result = parser.add_argument_group("the result")
    add_files(result)
    result.add_argument("--trace", metavar="FILE", type=Path, help="save all that was seen, for `foretell report`")
    result.add_argument(
        "--advise", action="store_true",
        help="run it again with gradient checkpointing, mixed precision and others, and say what each saves",
    )  # fmt: skip
    result.add_argument("--quiet", action="store_true", help="no progress while it runs")
    parser.add_argument("job", nargs="*", help=argparse.SUPPRESS)


def prepare(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Marks where the user's own command begins: argparse would take its options for ours."""
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
    from foretell import api, calibration, gpus
    from foretell.advice import Job
    from foretell.capture import CaptureOptions, resolve
    from foretell.cli.show import exit_code, show_text
    from foretell.units import parse_bytes

    files = {"--json": options.json, "--trace": options.trace, "--report": options.report}
    check_targets({**files, "--snapshot": options.snapshot})
    engine = _engine(options)
    profile = calibration.load(options.profile) if options.profile else None
    gpu = gpus.find(options.gpu or (profile.device_name if profile else api.DEFAULT_GPU))
    capture = CaptureOptions(
        steps=_steps(options.steps),
        skip_init=not (options.keep_init or options.execute),
        offline=not options.online,
        events=options.events,
        assume=options.assume,
        engine=engine,
        execute=options.execute,
        timeout_seconds=options.timeout,
        stdout="stderr" if options.json == "-" else "inherit",
    )
    context_bytes = parse_bytes(options.context) if options.context else None
    command = resolve(options.job, engine=engine)
    if not (options.gpu or profile or options.quiet):
        print(f"foretell: no --gpu given; taking {gpu.name}, a large one", file=sys.stderr, flush=True)
    traces: list[Trace] = []
    estimate = api.run(
        command,
        gpu=gpu,
        context_bytes=context_bytes,
        used_by_others_bytes=parse_bytes(options.used_by_others),
        profile=profile,
        options=capture,
        trace_path=options.trace,
        writes_path=options.keep_writes,
        on_progress=None if options.quiet else _progress(),
        on_trace=traces.append,
    )
    show_text(estimate, is_json=options.json == "-")
    if options.advise:
        job = Job(
            command=command,
            gpu=gpu,
            context_bytes=context_bytes,
            used_by_others_bytes=parse_bytes(options.used_by_others),
            profile=profile,
            options=capture,
        )
        estimate = _advise(job, estimate, is_json=options.json == "-", is_quiet=options.quiet)
    if options.explain:
        _explain(traces[0], is_json=options.json == "-")
    write_files(options, traces[0], estimate)
    return exit_code(estimate)


def _engine(options: argparse.Namespace) -> Engine | Literal["auto"]:
    """`--execute` and `--explain` are about the CPU engine, and choose it."""
    chosen: Engine | Literal["auto"] = options.engine
    for option in ("execute", "explain"):
        if getattr(options, option):
            if chosen == "virtual":
                raise UsageError(f"--{option} is the CPU engine's, which --engine virtual excludes.")
            chosen = "cpu"
    return chosen


def _advise(job: Job, estimate: Estimate, *, is_json: bool, is_quiet: bool) -> Estimate:
    """The estimate has been shown: what follows takes a while."""
    from foretell.advice import advise
    from foretell.cli.terminal import console, readers_may_leave
    from foretell.report import advice_text

    def say(text: str) -> None:
        if not is_quiet:
            print(f"foretell: {text}", file=sys.stderr, flush=True)

    findings = advise(job, estimate, say=say)
    with readers_may_leave():
        advice_text.render(
            findings.advice,
            reserved_bytes=findings.reserved_bytes,
            is_oom=estimate.oom is not None,
            not_tried=findings.not_tried,
            console=console(stderr=is_json),
        )
    return replace(estimate, advice=tuple(findings.advice))


def _explain(trace: Trace, *, is_json: bool) -> None:
    from foretell.cli.terminal import console, readers_may_leave
    from foretell.cpu import explain, layers

    with readers_may_leave():
        explain.render(layers.layers_of(trace), console(stderr=is_json))


def _steps(text: str) -> Steps:
    if text == "auto":
        return "auto"
    if text == "all":
        return "all"
    if not text.isdigit():
        raise UsageError(f"--steps {text}: a number of steps is 1 or more, or auto, or all.")
    return int(text)


def _progress() -> Callable[[Progress], None]:
    """Whole lines, when there is news or every ten seconds. On a terminal a half-drawn progress bar is wiped first; it
    is drawn again by whoever draws it."""
    from foretell.units import format_bytes

    last_shown = (-1, "")
    last_seconds = 0.0
    wipe = "\r\033[K" if sys.stderr.isatty() else ""

    def show(progress: Progress) -> None:
        nonlocal last_shown, last_seconds
        now = (progress.num_steps, progress.phase or "")
        pause = 3 if progress.num_operators else 10
        if now[0] == last_shown[0] and progress.seconds - last_seconds < pause:
            return
        last_shown, last_seconds = now, progress.seconds
        if progress.num_steps:
            reserved = f", reserved {format_bytes(progress.reserved_bytes)}" if progress.reserved_bytes else ""
            text = f"step {progress.num_steps - 1} done{reserved}"
        else:
            text = f"{progress.phase}, no step yet" if progress.phase else "starting: no step yet"
        if progress.num_operators:
            text += f", {progress.num_operators:,} operators computed"
        if progress.remaining_seconds is not None:
            text += f", about {progress.remaining_seconds:.0f} s to go"
        print(f"{wipe}foretell: {progress.seconds:.0f} s, {text}", file=sys.stderr, flush=True)

    return show
