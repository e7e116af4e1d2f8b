"""Reruns a job with changes made from outside; in forks of a warm process if the job is a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from foretell import api
from foretell.advice.survey import Survey, read_changes, read_survey
from foretell.errors import ForetellError
from foretell.jobs import Job
from foretell.records import Estimate, Gpu
from foretell.runs import Warm
from foretell.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    estimate: Estimate
    trace: Trace
    changes: dict[str, dict[str, Any]]
    survey: Survey | None

    @property
    def reserved_bytes(self) -> int:
        return self.estimate.peak.reserved_bytes


class Trials:
    def __init__(self, job: Job, *, warm: Warm | None = None) -> None:
        self._job = job
        self._warm: Warm | None = warm or Warm()
        self._is_ours = warm is None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._no_forks_any_more()

    def survey(self, gpu: Gpu, *, expected_bytes: int | None) -> Trial:
        """Run with a survey. Forks are used only if a fork reaches the same peak as a fresh process."""
        if self._warm is not None:
            try:
                trial = self.run(gpu, is_survey=True)
            except ForetellError:
                self._no_forks_any_more()
            else:
                if expected_bytes in (None, trial.reserved_bytes):
                    return trial
                self._no_forks_any_more()
        return self.run(gpu, is_survey=True)

    def run(
        self,
        gpu: Gpu,
        *,
        is_survey: bool = False,
        words: Sequence[str] = (),
        variables: Sequence[tuple[str, str]] = (),
    ) -> Trial:
        options = replace(self._job.options, survey=is_survey, alternatives=tuple(words), stdout="file", time=True)
        environment = (*self._job.environment, *variables)
        job = replace(self._job, gpu=gpu, options=options, environment=environment)
        with api.scratch() as folder:
            run = api.run(job, directory=folder, warm=self._warm)
            return Trial(
                estimate=run.complete_estimate,
                trace=run.trace,
                changes=read_changes(folder),
                survey=read_survey(folder),
            )

    def _no_forks_any_more(self) -> None:
        if self._warm is not None and self._is_ours:
            self._warm.close()
        self._warm = None
