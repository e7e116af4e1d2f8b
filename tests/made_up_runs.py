"""Runs of a job whose memory is made up, in place of `Variants`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from foretell.errors import ForetellError
from foretell.jobs import Job
from foretell.plan import Outcome
from foretell.records import Estimate, PeakMemory
from foretell.units import GIB, MIB
from report_data import estimate_for, transformer

_ESTIMATE = replace(estimate_for(transformer(num_layers=1)), attribution=None, caveats=(), num_unknown_reads=0)


def estimate_of(job: Job, reserved_bytes: int) -> Estimate:
    device = reserved_bytes + 300 * MIB
    peak = PeakMemory(
        allocated_bytes=reserved_bytes - MIB, reserved_bytes=reserved_bytes, library_bytes=0,
        context_bytes=300 * MIB, device_low_bytes=device, device_high_bytes=device, request_bytes=device + GIB,
    )  # fmt: skip
    is_oom = device > job.gpu.total_bytes - job.used_by_others_bytes
    oom = estimate_for(transformer(num_layers=1), is_out_of_memory=True).oom if is_oom else None
    return replace(
        _ESTIMATE, gpu=job.gpu, peak=peak, oom=oom, verdict="oom" if is_oom else "fits", command=job.command,
        used_by_others_bytes=job.used_by_others_bytes, seconds={"total": 1.5},
    )  # fmt: skip


def made_up(need: Callable[[Job], int]) -> Any:
    """A class as `Variants`; `need` returns reserved bytes, or raises an error of foretell's."""

    class MadeUp:
        num_workers = 2
        asked: list[Job] = []  # noqa: RUF012

        def __init__(self, job: Job, **options: Any) -> None:
            pass

        def __enter__(self) -> MadeUp:
            return self

        def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
            pass

        def run(self, jobs: Sequence[Job]) -> list[Outcome]:
            self.asked.extend(jobs)
            return [self._outcome(job) for job in jobs]

        def _outcome(self, job: Job) -> Outcome:
            try:
                return Outcome(estimate=estimate_of(job, need(job)))
            except ForetellError as error:
                return Outcome(problem=str(error), is_failure=error.exit_code == 1)

    return MadeUp
