"""Runs a job again, with changes made to it from outside; in forks of one warm process where the job is a script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from foretell import api
from foretell.advice.survey import Survey, read_changes, read_survey
from foretell.calibration import Profile
from foretell.capture import CaptureOptions, Command, WarmProcess, launch
from foretell.errors import ForetellError
from foretell.records import Estimate, Gpu
from foretell.trace import Trace

_WORTH_IMPORTING = {
    "torchvision": ("torchvision",),
    "timm": ("torchvision", "timm"),
    "transformers": ("transformers", "torch._inductor.compile_fx", "torch.distributed.tensor", "scipy.optimize"),
}
"""By what the script names: what takes long and every fork would import anew. Not accelerate nor what imports it: where
deepspeed is installed they would remember that the warm process has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """As `api.run` takes it."""

    command: Command
    gpu: Gpu
    context_bytes: int | None
    used_by_others_bytes: int
    profile: Profile | None
    options: CaptureOptions


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
    def __init__(self, job: Job) -> None:
        self._job = job
        self._stack = ExitStack()
        self._warm: WarmProcess | None = None

    def __enter__(self) -> Trials:
        if _is_script(self._job.command):
            folder = self._stack.enter_context(api.scratch())
            self._warm = WarmProcess(folder, modules=_modules_of(Path(self._job.command.argv[1])))
            self._stack.callback(self._warm.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def survey(self, gpu: Gpu, *, expected_bytes: int | None) -> Trial:
        """A fork must come to what a process of its own came to, or there are no forks."""
        if self._warm is not None:
            try:
                trial = self.run(gpu, is_survey=True)
            except ForetellError:
                self._warm = None
            else:
                if expected_bytes in (None, trial.reserved_bytes):
                    return trial
                self._warm = None
        return self.run(gpu, is_survey=True)

    def run(
        self,
        gpu: Gpu,
        *,
        is_survey: bool = False,
        words: Sequence[str] = (),
        variables: Sequence[tuple[str, str]] = (),
    ) -> Trial:
        job = self._job
        traces: list[Trace] = []
        with api.scratch() as folder:
            estimate = api.run(
                job.command,
                gpu=gpu,
                context_bytes=job.context_bytes,
                used_by_others_bytes=job.used_by_others_bytes,
                profile=job.profile,
                options=replace(
                    job.options,
                    survey=is_survey,
                    alternatives=tuple(words),
                    variables=(*job.options.variables, *variables),
                    stdout="file",
                ),
                directory=folder,
                launcher=launch if self._warm is None else self._warm.launch,
                on_trace=traces.append,
            )
            return Trial(estimate=estimate, trace=traces[0], changes=read_changes(folder), survey=read_survey(folder))


def _is_script(command: Command) -> bool:
    return command.python == command.argv[0] and len(command.argv) > 1 and command.argv[1].endswith(".py")


def _modules_of(script: Path) -> list[str]:
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return []
    named = re.findall(r"^\s*(?:import|from)\s+(\w+)", text, re.MULTILINE)
    return list(dict.fromkeys(module for name in named for module in _WORTH_IMPORTING.get(name, ())))
