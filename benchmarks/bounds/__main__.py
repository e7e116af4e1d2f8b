"""Largest batch sizes compared with those that ran, and those that failed, on an RTX 3090 (`make bounds`).

    python -m benchmarks.bounds [--sample 60] [--seed 0] [--context 1343MiB] [--markdown docs/max-batch.md]

timm publishes, for a thousand models, the batch size at which its training benchmark ran on an RTX 3090 of 24 GB, and
the next larger one, at which it failed. The search of `foretell max-batch` finds the largest one that fits on the
virtual card. It is right if it lies between the two, or within 10 % of them.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from foretell import api, gpus
from foretell.errors import ForetellError
from foretell.evaluation.published import BOUNDS, BOUNDS_CONTEXT_BYTES, BOUNDS_GPU, BOUNDS_SCRIPT, Bounds, bounds_of
from foretell.evaluation.runner import WORKLOADS
from foretell.jobs import CaptureOptions, Job
from foretell.plan.search import Answer, largest
from foretell.runs import Pool, Warm, parse_workers
from foretell.units import MIB, parse_bytes

GROUND_TRUTH = Path(__file__).resolve().parents[3] / "shared" / "ground_truth"
FILE = f"{BOUNDS}.csv"
TOLERANCE_PERCENT = 10
BEGIN, END = "<!-- begin: make bounds -->", "<!-- end: make bounds -->"
Judgement = Literal["right", "too large", "too small", "no answer"]


@dataclass(frozen=True, slots=True)
class Found:
    batch_size: int | None
    num_runs: int
    problem: str = ""


def main() -> int:
    options = parsed()
    rows = sample(read(options.ground_truth / FILE), options.sample, options.seed)
    console = Console(stderr=True, highlight=False)
    judged: list[tuple[Bounds, Found]] = []
    with Pool(options.workers, modules=["timm"]) as pool:
        for (row, _), found in pool.map(search, [(row, parse_bytes(options.context)) for row in rows]):
            judged.append((row, found))
            console.print(f"{len(judged)} of {len(rows)}: {line(row, found)}", markup=False, soft_wrap=True)
    text = summary(judged, options)
    print(text)
    if options.markdown:
        before, _, rest = options.markdown.read_text().partition(BEGIN)
        options.markdown.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ground-truth", type=Path, default=GROUND_TRUTH, metavar="FOLDER")
    parser.add_argument("--sample", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--context", default=f"{BOUNDS_CONTEXT_BYTES // MIB}MiB", metavar="SIZE")
    parser.add_argument("--workers", type=parse_workers, default=os.cpu_count() or 1)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


def read(path: Path) -> list[Bounds]:
    with path.open(newline="") as file:
        return [bounds_of(row) for row in csv.DictReader(file)]


def sample(rows: Sequence[Bounds], number: int, seed: int) -> list[Bounds]:
    """Random rows, at most one of each model."""
    shuffled = random.Random(seed).sample(list(rows), len(rows))
    first_of = {row.model: row for row in reversed(shuffled)}
    return [row for row in shuffled if first_of[row.model] is row][:number]


def job_of(row: Bounds, batch_size: int, context_bytes: int) -> Job:
    return Job(
        command=(str(WORKLOADS / BOUNDS_SCRIPT), *row.arguments(batch_size)),
        gpu=gpus.find(BOUNDS_GPU),
        context_bytes=context_bytes,
        options=CaptureOptions(steps="all", history=False, attribution=False, stdout="file", timeout_seconds=300.0),
    )


def search(item: tuple[Bounds, int], warm: Warm) -> Found:
    """The task of a worker of the pool."""
    row, context_bytes = item
    num_runs, problem = 0, ""

    def ask(values: Sequence[int]) -> list[Answer]:
        return [answer(value) for value in values]

    def answer(value: int) -> Answer:
        nonlocal num_runs, problem
        num_runs += 1
        try:
            estimate = api.run(job_of(row, value, context_bytes), warm=warm).estimate
        except ForetellError as error:
            problem = str(error).splitlines()[0].replace(f"{WORKLOADS}{os.sep}", "")
            return Answer(fits=None)
        return Answer(fits=estimate.verdict == "fits", need_bytes=estimate.device_bytes)

    first = answer(row.ran)
    if first.fits is None:
        return Found(None, num_runs, problem)
    if row.failed is None and first.fits:
        return Found(row.ran, num_runs)
    card = gpus.find(BOUNDS_GPU)
    found = largest(
        ask, range(1, 4 * (row.failed or row.ran) + 1), start=row.ran, limit_bytes=card.total_bytes, width=1
    )
    return Found(found.value or 0, num_runs)


def judgement(row: Bounds, found: Found) -> Judgement:
    if found.batch_size is None:
        return "no answer"
    if 100 * found.batch_size < (100 - TOLERANCE_PERCENT) * row.ran:
        return "too small"
    if row.failed is not None and 100 * found.batch_size >= (100 + TOLERANCE_PERCENT) * row.failed:
        return "too large"
    return "right"


def line(row: Bounds, found: Found) -> str:
    layout = "channels last" if row.is_channels_last else "channels first"
    failed = "" if row.failed is None else f", {row.failed} failed"
    return (
        f"{row.model} at {row.image_size} px, {layout}: {row.ran} ran{failed}; largest {found.batch_size} "
        f"in {found.num_runs} runs: {judgement(row, found)}{': ' + found.problem if found.batch_size is None else ''}"
    )


def summary(judged: Sequence[tuple[Bounds, Found]], options: argparse.Namespace) -> str:
    answered = [(row, found) for row, found in judged if found.batch_size is not None]
    right = [(row, found) for row, found in answered if judgement(row, found) == "right"]
    strictly = [
        (row, found)
        for row, found in answered
        if row.ran <= (found.batch_size or 0) and (row.failed is None or (found.batch_size or 0) < row.failed)
    ]
    false_oom = sum((found.batch_size or 0) < row.ran for row, found in answered)
    num_bounded = sum(row.failed is not None for row, _ in answered)
    share = f"{len(right)} of {len(answered)} ({len(right) / max(1, len(answered)):.0%})"
    lines = [
        f"{len(judged)} rows (seed {options.seed}), context {options.context}; {num_bounded} have a batch size that "
        f"failed; {len(judged) - len(answered)} could not be run.",
        f"Between the batch that ran and the one that failed, or within 10 %: {share}; strictly between: "
        f"{len(strictly)}. A batch that ran does not fit (false OOM): {false_oom}.",
    ]
    wrong = sorted((line(row, found) for row, found in judged if judgement(row, found) != "right"))
    return "\n\n".join(lines) + ("\n\n" + "\n".join(f"- {each}" for each in wrong) if wrong else "")


if __name__ == "__main__":
    sys.exit(main())
