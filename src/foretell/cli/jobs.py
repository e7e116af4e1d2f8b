"""What to run, and on which GPU: the options that all commands that run a script have in common."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretell.cli.files import is_stdout_taken
from foretell.cli.terminal import say
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.jobs import Job, Steps
    from foretell.records import Engine, Gpu
    from foretell.runs import Progress

_HINT_SECONDS = 10


def add_job(
    parser: argparse.ArgumentParser, *, has_gpu: bool = True, has_world_size: bool = True
) -> argparse._ArgumentGroup:
    """Add the options of `job_of` and the command itself; without `has_gpu` the caller has options for several GPUs,
    without `has_world_size` for several numbers of them.
    Returns the group of options about the run. The module needs `prepare` as well."""
    card = parser.add_argument_group("GPU")
    if has_gpu:
        card.add_argument(
            "--gpu", metavar="NAME",
            help="a GPU from `foretell gpus`, or MEMORY,smNN, e.g. 24GiB,sm89 (default: a100-80gb)",
        )  # fmt: skip
        card.add_argument(
            "--profile", metavar="FILE", type=Path,
            help="use figures measured by `foretell calibrate` instead of built-in ones",
        )  # fmt: skip
    card.add_argument(
        "--context",
        metavar="SIZE",
        help="memory of an empty CUDA process on your machine, e.g. 430MiB (default: estimated)",
    )
    card.add_argument(
        "--gpus-per-node", metavar="N", type=_count,
        help="GPUs in the machine (default: as many as torchrun, accelerate or deepspeed is told to use, else 1)",
    )  # fmt: skip
    if has_world_size:
        card.add_argument(
            "--world-size", metavar="N", type=world_size,
            help="GPUs of the whole job, of which some are run (--ranks); --gpus-per-node is 8 then by default",
        )  # fmt: skip
    card.add_argument(
        "--ranks", metavar="auto|all|LIST",
        help="which ranks to run, e.g. 0,7,64-71; auto: the first and the last, and one of each stage of a pipeline "
        "(default: all of one machine, auto of several)",
    )  # fmt: skip
    card.add_argument(
        "--interconnect", metavar="nvlink|pcie,ib|ethernet",
        help="how the GPUs of a job are connected, inside and between machines, e.g. nvlink,ib; NCCL's buffers depend "
        "on it (default: as usual for the GPU)",
    )  # fmt: skip
    card.add_argument(
        "--nccl", metavar="SIZE", help="what NCCL's buffers take of each GPU, e.g. 1500MiB (default: by rule)"
    )
    card.add_argument(
        "--used-by-others", metavar="SIZE", default="0",
        help="memory already used by other processes, such as a desktop, e.g. 800MiB (default: 0)",
    )  # fmt: skip
    card.add_argument(
        "--events", choices=["late", "early"], default="late",
        help="when work on a second stream completes: as late as on a real GPU (default), or at once",
    )  # fmt: skip
    card.add_argument(
        "--workspaces", choices=["asked", "none", "next"], default="asked",
        help="the cuDNN engine of each convolution: its first choice (default), the one with the smallest workspace, "
        "or the next one with another workspace",
    )  # fmt: skip
    job = parser.add_argument_group("run")
    job.add_argument(
        "--steps", metavar="N|auto|all|worst", default="auto",
        help="training steps to run; auto: at least 3, until the peak stops growing (default); worst: --data-only",
    )  # fmt: skip
    job.add_argument(
        "--data-only", action="store_const", dest="steps", const="worst",
        help="look at the shapes of all batches, without training, and train only on the largest ones",
    )  # fmt: skip
    job.add_argument(
        "--assume", choices=["low", "typical", "high"], default="typical",
        help="if an unknown value determines a size (a mask, detected boxes), assume none, half or all of the elements "
        "(default: typical)",
    )  # fmt: skip
    job.add_argument("--timeout", metavar="SECONDS", type=float, help="stop the run after this time")
    job.add_argument("--keep-init", action="store_true", help="do not skip weight initialization")
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
    parser.add_argument("job", nargs="*", help=argparse.SUPPRESS)
    # Not all commands have them.
    parser.set_defaults(
        profile=None, keep_writes=None, verbose=False, time=False, host_factor=None, price_per_hour=None,
        world_size=None,
    )  # fmt: skip
    return job


def prepare(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Marks where the user's command begins, because argparse would take its options for ours."""
    takes_value = {o for action in parser._actions for o in action.option_strings if action.nargs is None}
    at = next(number for number, word in enumerate(words) if not word.startswith("-")) + 1
    while at < len(words):
        word = words[at]
        if word == "--":
            return words
        if not word.startswith("-") or word in ("-", "-m"):
            break
        at += 2 if word in takes_value else 1
    return [*words[:at], "--", *words[at:]] if at < len(words) else words


def job_of(
    options: argparse.Namespace, *, gpu: Gpu | None = None, is_output_shown: bool = True, is_note_shown: bool = True
) -> Job:
    """From the command line; what can be seen to be wrong with it is said before anything runs. `gpu`: for a command
    without `--gpu`. Without `is_output_shown` what the script prints goes to a file, as it must in warm forks; without
    `is_note_shown` it is not said what is done with a launcher."""
    from foretell import api, calibration, gpus
    from foretell.jobs import CaptureOptions, Job
    from foretell.rules.nccl import fabric_of
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
        workspaces=options.workspaces,
        assume=options.assume,
        engine=_engine(options),
        execute=options.execute,
        timeout_seconds=options.timeout,
        verbose=options.verbose,
        time=options.time
        or any(getattr(options, name, None) is not None for name in ("host_factor", "price_per_hour", "timeline")),
        host_factor=options.host_factor,
        price_per_hour=options.price_per_hour,
        interconnect=options.interconnect,
        nccl_bytes=None if options.nccl is None else parse_bytes(options.nccl),
        stdout="file" if not is_output_shown else "stderr" if is_stdout_taken(options) else "inherit",
    )
    if gpu is None:
        default = profile.device_name if profile else api.DEFAULT_GPU
        gpu = gpus.find(default if options.gpu is None else options.gpu)
    job = Job(
        command=tuple(options.job),
        gpu=gpu,
        context_bytes=None if options.context is None else parse_bytes(options.context),
        gpus_per_node=options.gpus_per_node,
        world_size=options.world_size,
        ranks=options.ranks,
        used_by_others_bytes=parse_bytes(options.used_by_others),
        profile=profile,
        options=capture,
    )
    fabric_of(gpu, options.interconnect)  # raises if it is none
    note = resolve(
        job.command, engine=capture.engine, gpus_per_node=job.gpus_per_node, world_size=job.world_size, ranks=job.ranks
    ).note
    if note and is_note_shown and not options.quiet:
        say(note)
    return job


def _engine(options: argparse.Namespace) -> Engine | Literal["auto"]:
    """`--execute` applies to the CPU engine, and selects it."""
    chosen: Engine | Literal["auto"] = options.engine
    if options.execute:
        if chosen == "virtual":
            raise UsageError("--execute works only with the CPU engine; remove --engine virtual.")
        chosen = "cpu"
    return chosen


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text) or int(text) == 0:
        raise UsageError(f"--gpus-per-node {text}: must be a number (1 or more).")
    return int(text)


def world_size(text: str, option: str = "--world-size") -> int:
    from foretell.runs.worlds import MOST_RANKS

    if not re.fullmatch("[0-9]{1,6}", text) or not 1 <= int(text) <= MOST_RANKS:
        raise UsageError(f"{option} {text}: must be a number of GPUs (1 to {MOST_RANKS:,}).")
    return int(text)


def _steps(text: str) -> Steps:
    for word in ("auto", "all", "worst"):
        if text == word:
            return word
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"--steps {text}: must be a number (1 or more), auto, all or worst.")
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


def progress() -> Callable[[Progress], None]:
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
        if progress.num_batches:
            text += f", {progress.num_batches:,} batches looked at"
        if progress.wait:
            text += f", {progress.wait}"
        if progress.num_operators:
            text += f", {progress.num_operators:,} operators computed"
        if progress.remaining_seconds is not None:
            text += f", about {progress.remaining_seconds:.0f} s left"
        say(f"{progress.seconds:.0f} s, {text}")

    return show
