"""`foretell share`: can several jobs share a GPU, and how fast will each run."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from foretell.cli.files import check_targets, is_stdout_taken, write
from foretell.cli.jobs import progress
from foretell.cli.terminal import say
from foretell.errors import UsageError

_EPILOG = """Each JOB is a trace (`foretell run --trace`), an estimate (`foretell run --json`), or a script with its
arguments in quotes, which is run on a virtual GPU.

examples:
  foretell share a.json b.json
  foretell share --gpu a100-40gb "train.py --batch-size 64" "finetune.py --lora" other.trace
  foretell share --mode mig --gpu a100-80gb a.json a.json b.json
  foretell share a.json b.json --busy 97/62,45/20

exit codes: 0 all jobs fit together; 3 they do not; 1 a script itself failed;
            2 wrong usage or an unsupported environment
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="a trace, an estimate as JSON, or a quoted command")
    parser.add_argument("--gpu", metavar="NAME", help="the GPU they share (default: that of the files)")
    parser.add_argument(
        "--mode", choices=["time-slicing", "mps", "mig"], default="time-slicing",
        help="time-slicing: processes take turns, each with its own CUDA context (default); mps: one context for all; "
        "mig: each job in a slice of the GPU",
    )  # fmt: skip
    parser.add_argument(
        "--busy", metavar="GPU/MEM,...",
        help="for each job, the GPU and memory utilization in percent that nvidia-smi shows when it runs alone, e.g. "
        "97/62,45/20; - if not known (default: as estimated, if the files have it)",
    )  # fmt: skip
    parser.add_argument("--context", metavar="SIZE", help="memory of an empty CUDA process, e.g. 430MiB")
    parser.add_argument("--used-by-others", metavar="SIZE", default="0", help="memory used by other processes")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    parser.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.plan import share_text
    from foretell.plan.share import share

    jobs = [_job(word) for word in options.jobs]
    check_targets({"--json": options.json}, sources=[job for job in jobs if isinstance(job, Path)])
    found = share(
        jobs, gpu=options.gpu, mode=options.mode, busy=options.busy.split(",") if options.busy else (),
        context=options.context, used_by_others=options.used_by_others,
        say=(lambda text: None) if options.quiet else say, on_progress=None if options.quiet else progress(),
    )  # fmt: skip
    with ignore_broken_pipe():
        if options.json == "-":
            print(found.to_json(), flush=True)
        else:
            share_text.render(found, console(stderr=is_stdout_taken(options)))
    if options.json and options.json != "-":
        write(Path(options.json), found.to_json() + "\n")
    return 3 if found.grade == "oom" else 0


def _job(word: str) -> Path | list[str]:
    """A file that is no script, or a command."""
    path = Path(word)
    if path.suffix in (".json", ".trace") or (path.is_file() and path.suffix != ".py"):
        return path
    try:
        words = shlex.split(word)
    except ValueError as error:
        raise UsageError(f"{word!r}: {error}.") from None
    if not words:
        raise UsageError("a JOB is empty. Give a trace, an estimate as JSON, or a script with its arguments in quotes.")
    return words
