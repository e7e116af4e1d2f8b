"""`make coverage`: which of the models people train run on the virtual GPU as they do where all is computed.

Every job trains two steps of a tiny model twice, on the CPU and on the virtual GPU. Results are kept as lines of JSON
under build/coverage as they come; a whole run writes docs/coverage.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.coverage import libraries, report
from benchmarks.coverage.jobs import LIBRARIES, WRONG, Job, Result
from benchmarks.coverage.sampling import fast_sample, sample, write_sample
from benchmarks.coverage.worker import CODE, MODULES, ROOT, work
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from foretell.plain import from_plain, to_plain
from foretell.runs import Pool, Store, parse_workers, state_of_code
from foretell.runs.pool import Workers
from foretell.runs.store import lines

NEWEST = "torch-2.15"
"""The stack whose whole run is docs/coverage.md."""


def main() -> int:
    options = parsed()
    console = Console(stderr=True)
    cache = ROOT / "build" / "coverage"
    if options.choose_sample:
        write_sample(fast_sample([kept(path) for path in options.choose_sample]))
        return 0
    everything = libraries.jobs(cache)
    jobs = chosen(everything, options)
    path: Path = options.results or cache / f"results-torch-{report.versions()['torch']}.jsonl"
    if not options.resume:
        path.unlink(missing_ok=True)
    store = Store(path, state=state_of_code(*CODE))
    waiting = [job for job in jobs if job.key not in store]
    try:
        for job, result in progressing(options.workers, waiting, len(jobs) - len(waiting), console):
            store.add(job.key, to_plain(result))
    except KeyboardInterrupt:
        console.print(f"interrupted; continue with --resume ({path})")
    store.close()
    results = [from_plain(Result, store[job.key]) for job in jobs if job.key in store]
    console.print(report.table(results))
    if options.json:
        options.json.write_text(report.as_json(results))
    if is_whole(options) and len(results) == len(everything):
        (ROOT / "docs" / "coverage.md").write_text(report.document(results))
    return int(any(result.outcome in WRONG for result in results) or len(results) < len(jobs))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make coverage ARGS=...", description=__doc__)
    parser.add_argument("--only", choices=LIBRARIES, help="one library")
    parser.add_argument("--match", metavar="PATTERN", help="jobs whose key matches, e.g. timm/resnet* or */CTC")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N of each library")
    parser.add_argument("--sample", type=int, metavar="N", help="N jobs, spread evenly over libraries and heads")
    parser.add_argument("--jobs", type=Path, metavar="FILE", help="the keys in this file, one per line")
    parser.add_argument("--resume", action="store_true", help="keep this state of the code's results, run the rest")
    parser.add_argument(
        "--workers", type=parse_workers, default=2, metavar="N|ray|ray://HOST:PORT",
        help="at once on this machine, or a Ray cluster (default: 2)",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, metavar="FILE", help="lines of JSON (default: under build/coverage)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the totals and all results to this file")
    parser.add_argument(
        "--choose-sample",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="write the sample that CI runs, and run nothing",
    )
    return parser.parse_args()


def is_whole(options: argparse.Namespace) -> bool:
    """A part of the models, or another stack than the newest, says nothing about the whole."""
    parts = (options.only, options.match, options.limit, options.sample, options.jobs, options.results)
    return not any(parts) and ROOT.joinpath("build", NEWEST).resolve() == Path(sys.prefix).resolve()


def chosen(everything: Sequence[Job], options: argparse.Namespace) -> list[Job]:
    jobs = [job for job in everything if options.only in (None, job.library)]
    if options.match:
        jobs = [job for job in jobs if fnmatch.fnmatchcase(job.key, options.match)]
    if options.jobs:
        wanted = set(options.jobs.read_text().split())
        jobs = [job for job in jobs if job.key in wanted]
    if options.limit is not None:
        jobs = [job for library in LIBRARIES for job in [j for j in jobs if j.library == library][: options.limit]]
    return sample(jobs, options.sample) if options.sample else jobs


def kept(path: Path) -> list[Result]:
    """Of the run that came last, where there are several."""
    return list({key: from_plain(Result, result) for key, _, result in lines(path)}.values())


class Bar:
    """The bar names the job that ended last; what went wrong is printed above it."""

    def __init__(self, progress: Progress, num_done: int, num_waiting: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=num_done + num_waiting, completed=num_done)

    def ended(self, result: Result) -> None:
        self._progress.update(self._task, advance=1, description=result.job)
        if result.outcome != "ran":
            self._progress.console.print(f"{result.job}: {result.outcome}: {result.reason}", markup=False)


def progressing(
    workers: Workers, jobs: list[Job], num_done: int, console: Console
) -> Iterator[tuple[Job, Result]]:
    if not jobs:
        return
    columns = (TextColumn("{task.description:.50}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    workers = min(workers, len(jobs)) if isinstance(workers, int) else workers
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress, Pool(workers, modules=MODULES) as pool:
        bar = Bar(progress, num_done, len(jobs))
        for job, result in pool.map(work, jobs):
            bar.ended(result)
            yield job, result


if __name__ == "__main__":
    sys.exit(main())
