"""Two training steps of one job of `make coverage` on CUDA, as a script, for `benchmarks.engines --models`.

    python benchmarks/coverage/on_cuda.py timm/resnet18
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from benchmarks.coverage import libraries
from benchmarks.coverage.jobs import Job
from benchmarks.coverage.training import seed, train


def main(key: str) -> None:
    """At the first size at which it can be trained; what was tried before counts on both engines alike."""
    job = Job.of(key)
    *smaller, largest = libraries.sizes(job)
    for size in smaller:
        try:
            return run(job, size)
        except (RuntimeError, ValueError, AssertionError):
            continue
    return run(job, largest)


def run(job: Job, size: int | None) -> None:
    seed()
    train(libraries.build(job, size), torch.device("cuda"))


if __name__ == "__main__":
    main(sys.argv[1])
