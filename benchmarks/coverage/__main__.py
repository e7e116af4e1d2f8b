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
from benchmarks.coverage.pool import ROOT, Pool
from benchmarks.coverage.sampling import fast_sample, sample, write_sample
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

NEWEST = "torch-2.15"
"""The stack whose whole run is docs/coverage.md."""


def main() -> int:
    options = parsed()
    console = Console(stderr=True)
    cache = ROOT / "build" / "coverage"
    if options.choose_sample:
        write_sample(fast_sample([list(kept(path).values()) for path in options.choose_sample]))
        return 0
    everything = libraries.jobs(cache)
    jobs = chosen(everything, options)
    path: Path = options.results or cache / f"results-torch-{report.versions()['torch']}.jsonl"
    done = kept(path) if options.resume else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if job.key not in done]
    with path.open("a" if options.resume else "w") as file:
        try:
            for result in progressing(Pool(options.workers), waiting, len(done), console):
                done[result.job] = result
                file.write(result.to_json() + "\n")
                file.flush()
        except KeyboardInterrupt:
            console.print(f"interrupted; go on with --resume ({path})")
    results = [done[job.key] for job in jobs if job.key in done]
    console.print(report.table(results))
    if options.json:
        options.json.write_text(report.as_json(results))
    if is_whole(options) and len(results) == len(everything):
        (ROOT / "docs" / "coverage.md").write_text(report.document(results))
    return int(any(result.outcome in WRONG for result in results) or len(results) < len(jobs))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make coverage ARGS=...", description=__doc__)
    parser.add_argument("--only", choices=LIBRARIES, help="one library")
    parser.add_argument("--match", metavar="PATTERN", help="jobs whose key matches, as in timm/resnet* or */CTC")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N of each library")
    parser.add_argument("--sample", type=int, metavar="N", help="N jobs, spread evenly over libraries and heads")
    parser.add_argument("--jobs", type=Path, metavar="FILE", help="the keys in this file, one a line")
    parser.add_argument("--resume", action="store_true", help="keep the results there are and run the rest")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="at once (default: 2)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="lines of JSON (default: under build/coverage)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the totals and all results to this file")
    parser.add_argument(
        "--choose-sample",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="write what CI runs, from these; run nothing",
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


def kept(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    return {result.job: result for result in map(Result.from_json, path.read_text().splitlines())}


class Bar:
    """The bar names the job that was started last; what went wrong is printed above it."""

    def __init__(self, progress: Progress, num_done: int, num_waiting: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=num_done + num_waiting, completed=num_done)

    def started(self, job: Job) -> None:
        self._progress.update(self._task, description=job.key)

    def ended(self, result: Result) -> None:
        self._progress.advance(self._task)
        if result.outcome != "ran":
            self._progress.console.print(f"{result.job}: {result.outcome}: {result.reason}", markup=False)


def progressing(pool: Pool, jobs: list[Job], num_done: int, console: Console) -> Iterator[Result]:
    columns = (TextColumn("{task.description:.50}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = Bar(progress, num_done, len(jobs))
        for result in pool.run(jobs, bar):
            bar.ended(result)
            yield result


if __name__ == "__main__":
    sys.exit(main())
