"""`foretell dataset`: makes, merges and describes data sets of labelled jobs."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.learn.draws import Draw

_EPILOG = """generate draws random training jobs and labels each with the reserved memory of three steps on a virtual
GPU. The same seed draws the same jobs, and an interrupted run continues. One label in fifty is checked against a
process of its own. --times adds what the time model says of a recorded step on each of three of these GPUs: a few
seconds a job.

examples:
  foretell dataset generate --num 5000 --kinds mlp,cnn,encoder labels.csv.gz
  foretell dataset generate --num 100000 --seed 7 labels.parquet
  foretell dataset generate --num 1000000 --workers ray labels.parquet
  foretell dataset generate --num 300 --times a100-80gb,rtx-4090,t4 labels.csv.gz
  foretell dataset merge labels.csv.gz measured.csv all.csv.gz
  foretell dataset describe all.csv.gz
"""
_CHECKED_SHARE = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from foretell.learn.draws import KINDS

    parser.usage = "foretell dataset generate|merge|describe [options] FILE..."
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=["generate", "merge", "describe"])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".csv, .csv.gz or .parquet")
    parser.add_argument("--num", metavar="N", type=int, default=1000, help="jobs to draw (default: 1000)")
    parser.add_argument("--kinds", metavar="A,B", default=",".join(KINDS), help="kinds of jobs (default: all)")
    parser.add_argument("--gpu", metavar="NAME", default="400GiB,sm80", help="label on this GPU (default: 400GiB,sm80)")
    parser.add_argument("--times", metavar="A,B", help="also label step time and utilization, on these GPUs")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--workers", metavar="N|ray|ray://HOST:PORT", default=str(os.cpu_count() or 1),
        help="processes on this machine, or a Ray cluster (default: one per CPU)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell.learn import dataset

    _check(options)
    if options.action == "generate":
        return _generate(options)
    if options.action == "merge":
        rows, left_out = dataset.merge([dataset.read(path) for path in options.files[:-1]])
        dataset.write(options.files[-1], rows)
        say(f"wrote {len(rows)} jobs to {options.files[-1]}; {left_out} were in more than one file")
        return 0
    with ignore_broken_pipe():
        print("\n".join(dataset.describe([row for path in options.files for row in dataset.read(path)])))
    return 0


def _check(options: argparse.Namespace) -> None:
    from foretell import gpus
    from foretell.cli.files import check_targets
    from foretell.runs import parse_workers

    if options.action == "generate" and len(options.files) != 1:
        raise UsageError("generate writes one file: foretell dataset generate labels.csv.gz")
    if options.action == "merge" and len(options.files) < 2:
        raise UsageError("merge needs files to read and, last, the one to write.")
    if options.num < 1:
        raise UsageError(f"--num {options.num}: must be 1 or more.")
    options.workers = parse_workers(options.workers)
    gpus.find(options.gpu)
    options.times = [gpus.find(name.strip()).name for name in (options.times or "").split(",") if name.strip()]
    if options.times and options.action != "generate":
        raise UsageError(f"--times goes with generate, not with {options.action}.")
    if options.action != "describe":
        target = options.files[-1]
        if not target.name.endswith((".csv", ".csv.gz", ".parquet")):
            raise UsageError(f"{target}: must end with .csv, .csv.gz or .parquet.")
        check_targets({"FILE": target}, sources=options.files[:-1])


def _generate(options: argparse.Namespace) -> int:
    """Answers are kept beside the target until it is written, so an interrupted run continues."""
    from rich.progress import Progress

    from foretell.cli.terminal import console
    from foretell.learn import dataset
    from foretell.learn.draws import draw
    from foretell.learn.processes import ask_all, state_of_description
    from foretell.plain import to_plain
    from foretell.runs import Store

    kinds = tuple(name.strip() for name in options.kinds.split(",") if name.strip())
    draws = draw(kinds, options.num, seed=options.seed)
    target: Path = options.files[0]
    store = Store(target.with_name(f".{target.name}.labels"), state=f"{state_of_description()}-{options.gpu}")
    missing = [each for each in draws if each.key not in store]
    started = time.monotonic()
    with Progress(console=console(stderr=True), disable=options.quiet, transient=True) as progress:
        task = progress.add_task("labelling", total=len(missing))
        questions = [{"draw": to_plain(each)} for each in missing]
        for number, answer in ask_all(questions, workers=options.workers, gpu=options.gpu):
            store.add(missing[number].key, answer)
            progress.advance(task)
    seconds = time.monotonic() - started
    store.close()
    labelled = [each for each in draws if store[each.key].get("features")]
    wrong = _check_labels(labelled[::_CHECKED_SHARE], store, options.gpu)
    times = _times(labelled, target, options) if options.times else {}
    rows = [dataset.row_of(each, store[each.key], gpu=options.gpu, times=times.get(each.key)) for each in labelled]
    dataset.write(target, rows)
    failed = len(draws) - len(labelled)
    rate = f", {len(missing) / seconds:.1f} a second" if missing and seconds else ""
    say(f"wrote {len(labelled)} jobs to {target}{rate}; {failed} could not be built or trained")
    if options.times:
        say(f"{sum(bool(row.times) for row in rows)} of them have step times")
    for text in wrong:
        say(text)
    return 1 if wrong else 0


def _times(draws: list[Draw], target: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By the key of the draw; those without a step time are left out."""
    from rich.progress import Progress

    from foretell.cli.terminal import console
    from foretell.learn.timed import state_of_times, time_all
    from foretell.runs import Store

    store = Store(target.with_name(f".{target.name}.times"), state=f"{state_of_times()}-{','.join(options.times)}")
    missing = [each for each in draws if each.key not in store]
    with Progress(console=console(stderr=True), disable=options.quiet, transient=True) as progress:
        task = progress.add_task("timing", total=len(missing))
        for number, answer in time_all(missing, options.times, workers=options.workers):
            store.add(missing[number].key, answer)
            progress.advance(task)
    found = {each.key: store[each.key].get("times") for each in draws}
    store.close()
    return {key: times for key, times in found.items() if times}


def _check_labels(draws: list[Draw], store: Any, gpu: str) -> list[str]:
    """One in fifty again, in a process of its own without a description: it must be equal to the byte."""
    from foretell import gpus
    from foretell.learn.processes import Worker
    from foretell.plain import to_plain

    wrong = []
    with Worker(gpus.find(gpu), is_fresh=True) as worker:
        for each in draws:
            again = worker.ask({"draw": to_plain(each), "describes": False})
            expected, found = store[each.key]["reserved_bytes"], again.get("reserved_bytes")
            if found != expected:
                wrong.append(f"a label differs from a fresh process: {expected} and {found} bytes: {each.key}")
    return wrong
