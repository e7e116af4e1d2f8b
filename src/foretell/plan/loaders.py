"""Finds the DataLoaders that feed the training of a job, by observing one run of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from foretell import api
from foretell.errors import UsageError
from foretell.jobs import Job
from foretell.plan.knobs import LoaderBatch
from foretell.protocol.journal import lines_of
from foretell.runs import Warm

OBSERVE = "dataloader-batch-size"
"""The word of `inside/change/loader_batches.py` that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A DataLoader whose batches were trained on."""

    mark: str
    """The same in every run of the script."""
    where: str | None
    batch_size: int | None
    """None: it has a batch sampler of the script's own, or makes no batches."""
    num_samples: int | None

    def __str__(self) -> str:
        size = "no batch size of its own" if self.batch_size is None else f"batch size {self.batch_size}"
        samples = "" if self.num_samples is None else f", {self.num_samples:,} samples"
        return f"the DataLoader at {self.where or 'an unknown line'} ({size}{samples})"


def observe(
    job: Job, *, say: Callable[[str], None] = lambda text: None, warm: Warm | None = None
) -> tuple[LoaderBatch, tuple[Loader, ...]]:
    """The knob for the batch size, and the loaders it changes. The job runs once, on a card with much more memory: what
    it uses now may not fit."""
    say("running the script once to see which DataLoader feeds its training")
    options = replace(job.options, alternatives=(OBSERVE,), history=False, attribution=False, stdout="file")
    observed = replace(job, gpu=api.with_much_memory(job.gpu), options=options)
    with api.scratch() as folder:
        run = api.run(observed, directory=folder, warm=warm)
        loaders = read_loaders(folder)
    if not loaders:
        assert run.estimate is not None  # or it raises the reason
        raise UsageError(
            "--dataloader: no training step used a batch of a torch.utils.data.DataLoader. Give the option that sets "
            "the batch size (--arg), a variable (--env) or a key of a configuration file (--config-key)."
        )
    fixed = [loader for loader in loaders if loader.batch_size is None]
    if fixed:
        raise UsageError(
            f"--dataloader: {fixed[0]} cannot be changed: its batches are made by a batch_sampler or by the data set. "
            "Give the option that sets their size (--arg), a variable (--env) or a key of a configuration file "
            "(--config-key)."
        )
    for loader in loaders:
        say(f"changing {loader}")
    sizes = {loader.batch_size for loader in loaders}
    marks = tuple(loader.mark for loader in loaders)
    return LoaderBatch(loaders=marks, batch_size=sizes.pop() if len(sizes) == 1 else None), loaders


def read_loaders(folder: Path) -> tuple[Loader, ...]:
    """Those that the run of this capture folder has noted."""
    found = {line["mark"]: Loader(**line) for line in reversed(lines_of(folder, "loader"))}
    return tuple(reversed(found.values()))
