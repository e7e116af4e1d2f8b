"""Samples: spread over libraries and heads, and the same every time. `sample.txt` is the one that CI runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.coverage.jobs import Job, Result

SAMPLE = Path(__file__).parent / "sample.txt"
CI_JOBS = 60


def sample(jobs: Sequence[Job], wanted: int) -> list[Job]:
    """One of each library and head, and then of each as many as its share, at even distances."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in sorted(jobs):
        groups.setdefault((job.library, job.head), []).append(job)
    ranked = [((rank + 0.5) / len(group), job) for group in groups.values() for rank, job in enumerate(spread(group))]
    first = [spread(group)[0] for group in groups.values()]
    rest = [job for _, job in sorted(ranked) if job not in first]
    return sorted((first + rest)[:wanted])


def spread(group: list[Job]) -> list[Job]:
    """So ordered that any beginning of it is spread over the whole: halves, quarters, eighths ..."""
    bits = max(1, (len(group) - 1).bit_length())
    order = sorted(range(1 << bits), key=lambda index: int(f"{index:0{bits}b}"[::-1], 2))
    return [group[index] for index in order if index < len(group)]


def fast_sample(runs: Sequence[Sequence[Result]]) -> list[Job]:
    """For CI: of the jobs that ran in all of these runs (one per stack), a sample without the slowest quarter."""
    ran = [{result.job: sum(result.seconds.values()) for result in run if result.outcome == "ran"} for run in runs]
    seconds = {key: sum(run[key] for run in ran) for key in set.intersection(*map(set, ran))}
    groups: dict[tuple[str, str], list[str]] = {}
    for key in sorted(seconds, key=lambda key: (seconds[key], key)):
        groups.setdefault((Job.of(key).library, Job.of(key).head), []).append(key)
    faster = [Job.of(key) for group in groups.values() for key in group[: -(-3 * len(group) // 4)]]
    return sample(faster, CI_JOBS)


def read_sample() -> list[Job]:
    return [Job.of(line) for line in SAMPLE.read_text().split()]


def write_sample(jobs: Sequence[Job]) -> None:
    SAMPLE.write_text("".join(f"{job.key}\n" for job in jobs))
