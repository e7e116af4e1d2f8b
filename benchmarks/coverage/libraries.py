"""One door to the libraries' models: which there are, at which sizes to try them, and how each is built."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.coverage import huggingface_models, timm_models, torchvision_models
from benchmarks.coverage.jobs import Job, Library
from benchmarks.coverage.training import Task


def jobs(cache: Path) -> list[Job]:
    """All there are, in the order in which they run."""
    found = [Job("torchvision", name) for name in torchvision_models.names()]
    found += [Job("transformers", name, head) for name, head in huggingface_models.names()]
    found += [Job("timm", name) for name in timm_models.names(cache)]
    return found


def modules_of(job: Job) -> list[str]:
    """What both forks would import, so that the process they are forked from does."""
    return huggingface_models.modules_of(job.name, job.head) if job.library == "transformers" else []


def sizes(job: Job) -> Iterable[int | None]:
    """Of the input, in the order in which they are tried."""
    if job.library == "torchvision":
        return torchvision_models.sizes(job.name)
    if job.library == "timm":
        return timm_models.sizes(job.name)
    return huggingface_models.sizes(job.head)


def build(job: Job, size: int | None) -> Task:
    if job.library == "torchvision":
        assert size is not None
        return torchvision_models.build(job.name, size)
    if job.library == "timm":
        assert size is not None
        return timm_models.build(job.name, size)
    return huggingface_models.build(job.name, job.head, size)


def versions() -> dict[Library, str]:
    return {
        "torchvision": torchvision_models.version(),
        "timm": timm_models.version(),
        "transformers": huggingface_models.version(),
    }
