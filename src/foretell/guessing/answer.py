"""A described job and a card in, an answer for a scheduler out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from foretell.errors import UsageError
from foretell.features import Family, Guess, JobFeatures, Source, Speed
from foretell.formulas.device import of_libraries
from foretell.learn import estimator
from foretell.learn.estimator import Learned
from foretell.records import Gpu, LibraryBytes
from foretell.rules import context_interval, library_bytes
from foretell.units import GIB

SCHEMA = "foretell.guess/1"
Decision = Literal["fits", "oom", "unclear"]
_MLP_CLASS_BYTES = GIB
_CLASS_BYTES = 8 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedJob:
    """What a job probably needs on a card. The interval holds for 95 % of runs with the settings of the data set."""

    name: str
    source: Source
    family: Family
    estimator: str
    gpu: str
    total_bytes: int
    batch_size: int | None
    reserved_bytes: int
    library_bytes: int
    context_bytes: int
    device_bytes: int
    device_low_bytes: int
    device_high_bytes: int
    bound_bytes: int
    """Device memory whose class is too low for at most 2 % of runs; 2.5 % need more bytes than `device_high_bytes`."""
    class_low_bytes: int
    class_high_bytes: int
    """The class of memory the estimate falls into, as in the papers: 1 GiB wide for MLPs, 8 GiB for other nets."""
    decision: Decision
    """`unclear`: the limit lies within the interval, and a full run decides."""
    speed: Speed | None = None
    """Step time and utilization; None: what a forward pass computes is not known."""
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        return self.decision != "unclear"

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["speed"] = None if self.speed is None else asdict(self.speed)
        return {"schema": SCHEMA, **values, "is_clear": self.is_clear}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())


def answer(
    features: JobFeatures, gpu: Gpu, *, context_bytes: int | None = None, model: Learned | None = None
) -> GuessedJob:
    """Raises a `UsageError` if too little is known of the job."""
    return answer_all([features], gpu, context_bytes=context_bytes, model=model)[0]


def answer_all(
    jobs: Sequence[JobFeatures], gpu: Gpu, *, context_bytes: int | None = None, model: Learned | None = None
) -> list[GuessedJob]:
    guesses = (model or estimator.shipped()).guess_all([(job, gpu) for job in jobs])
    beside = _Beside.of(gpu, context_bytes)
    return [_answered(job, guess, gpu, beside) for job, guess in zip(jobs, guesses, strict=True)]


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is on the card beside PyTorch's memory."""

    libraries: LibraryBytes
    context_bytes: int
    context_low: int
    context_high: int

    @classmethod
    def of(cls, gpu: Gpu, context_bytes: int | None) -> _Beside:
        context = gpu.context_bytes if context_bytes is None else context_bytes
        libraries = library_bytes(gpu, context_bytes=context_bytes)
        return cls(libraries, context, *context_interval(gpu, context, is_given=context_bytes is not None))


def _answered(job: JobFeatures, guess: Guess | None, gpu: Gpu, beside: _Beside) -> GuessedJob:
    if guess is None or guess.low_bytes is None or guess.high_bytes is None or guess.bound_bytes is None:
        raise UsageError(
            f"too little is known of {job.name or 'the job'} for a guess: it needs layers, with their activations, and "
            f"parameter_bytes. Not known: {', '.join(job.unknown)}."
        )
    library = of_libraries(job, beside.libraries)
    device = guess.reserved_bytes + library + beside.context_bytes
    low, high = guess.low_bytes + library + beside.context_low, guess.high_bytes + library + beside.context_high
    decision: Decision = "fits" if high <= gpu.total_bytes else "oom" if low > gpu.total_bytes else "unclear"
    width = _MLP_CLASS_BYTES if job.family == "mlp" else _CLASS_BYTES
    first = device // width * width
    return GuessedJob(
        name=job.name,
        source=job.source,
        family=job.family,
        estimator=guess.estimator,
        gpu=gpu.name,
        total_bytes=gpu.total_bytes,
        batch_size=job.batch_size,
        reserved_bytes=guess.reserved_bytes,
        library_bytes=library,
        context_bytes=beside.context_bytes,
        device_bytes=device,
        device_low_bytes=low,
        device_high_bytes=high,
        bound_bytes=guess.bound_bytes + library + beside.context_high,
        class_low_bytes=first,
        class_high_bytes=first + width,
        decision=decision,
        speed=guess.speed,
        unknown=job.unknown,
        notes=guess.notes,
    )
