"""`foretell run`: a script on a virtual GPU, end to end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from foretell.capture import Progress
    from foretell.capture.launch import Steps

_EPILOG = """SCRIPT.py runs with the Python foretell is installed in; to use another one, name it:
foretell run -- python train.py. All that follows the script is the script's.

examples:
  foretell run --gpu rtx-3060 train.py --batch-size 64
  foretell run --gpu "RTX 4090" --steps 10 -m my_package.train --config small.yaml
  foretell run --gpu 24GiB,sm89 --json - train.py > estimate.json
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
    job.add_argument("--engine", choices=["auto", "virtual", "cpu"], default="auto", help="cpu is not there yet")
    result = parser.add_argument_group("the result")
    result.add_argument("--json", metavar="FILE", help="write the estimate as JSON; - is the standard output")
    result.add_argument("--trace", metavar="FILE", type=Path, help="save all that was seen, for `foretell report`")
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
    from foretell.capture import CaptureOptions, resolve
    from foretell.units import parse_bytes

    if options.engine == "cpu":
        raise UnsupportedError(
            "the CPU engine is not there yet; --engine virtual needs the CUDA build of torch, but no GPU."
        )
    _check_targets(options)
    profile = calibration.load(options.profile) if options.profile else None
    gpu = gpus.find(options.gpu or (profile.device_name if profile else api.DEFAULT_GPU))
    capture = CaptureOptions(
        steps=_steps(options.steps),
        skip_init=not options.keep_init,
        offline=not options.online,
        events=options.events,
        assume=options.assume,
        timeout_seconds=options.timeout,
        stdout="stderr" if options.json == "-" else "inherit",
    )
    context_bytes = parse_bytes(options.context) if options.context else None
    command = resolve(options.job)
    if not (options.gpu or profile or options.quiet):
        print(f"foretell: no --gpu given; taking {gpu.name}, a large one", file=sys.stderr, flush=True)
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
    )
    from foretell.cli.show import show

    return show(estimate, json_target=options.json)


def _steps(text: str) -> Steps:
    if text == "auto":
        return "auto"
    if text == "all":
        return "all"
    if not text.isdigit():
        raise UsageError(f"--steps {text}: a number of steps is 1 or more, or auto, or all.")
    return int(text)


def _check_targets(options: argparse.Namespace) -> None:
    """A result that could not be written is said before the run, not after it."""
    for option, path in (("--json", options.json), ("--trace", options.trace)):
        if path is None or path == "-":
            continue
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {folder}.")
        if Path(path).is_dir():
            raise UsageError(f"{option} {path} is a folder; give the name of a file.")


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
        if now[0] == last_shown[0] and progress.seconds - last_seconds < 10:
            return
        last_shown, last_seconds = now, progress.seconds
        if progress.num_steps:
            reserved = f", reserved {format_bytes(progress.reserved_bytes)}" if progress.reserved_bytes else ""
            text = f"step {progress.num_steps - 1} done{reserved}"
        else:
            text = f"{progress.phase}, no step yet" if progress.phase else "starting: no step yet"
        print(f"{wipe}foretell: {progress.seconds:.0f} s, {text}", file=sys.stderr, flush=True)

    return show
