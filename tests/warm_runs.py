"""Many `foretell run`s of scripts, each a fork of one process that has torch and its friends imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from conftest import HANG_SECONDS, ZOO, ForetellRun
from foretell import api, gpus
from foretell import trace as traces
from foretell.errors import ForetellError
from foretell.jobs import CaptureOptions, Job, changes
from foretell.records import Profile
from foretell.runs import OUTPUT, Warm


class ZooRun(NamedTuple):
    run: ForetellRun
    trace: Path


class WarmRuns:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_runs = 0
        self.warm = Warm()
        self._zoo: dict[str, ZooRun] = {}

    def run(
        self, *command: str | Path, gpu: str = "rtx-3060", trace: Path | None = None, cwd: Path | None = None,
        environment: dict[str, str] | None = None, context_bytes: int | None = None, used_by_others_bytes: int = 0,
        profile: Profile | None = None, gpus_per_node: int | None = None, world_size: int | None = None,
        ranks: str | None = None, **options: Any,
    ) -> ForetellRun:  # fmt: skip
        """As `foretell run --steps all`; `options` are those of CaptureOptions."""
        self._num_runs += 1
        directory = self._folder / str(self._num_runs)
        directory.mkdir()
        job = Job(
            command=tuple(map(str, command)),
            gpu=gpus.find(gpu),
            cwd=cwd,
            environment=changes(environment or {}),
            context_bytes=context_bytes,
            used_by_others_bytes=used_by_others_bytes,
            profile=profile,
            options=CaptureOptions(**{"steps": "all", "timeout_seconds": HANG_SECONDS, **options}),
            gpus_per_node=gpus_per_node,
            world_size=world_size,
            ranks=ranks,
        )
        run = api.run(job, directory=directory, warm=self.warm)
        output = (directory / OUTPUT).read_text(errors="replace")
        if trace is not None:
            traces.save(run.trace, trace)
        try:
            estimate = run.complete_estimate
        except ForetellError as error:
            return ForetellRun(error.exit_code, output, str(error), {})
        return ForetellRun(3 if estimate.verdict == "oom" else 0, output, "", json.loads(estimate.to_json()))

    def zoo(self, name: str) -> ZooRun:
        """A workload of the zoo with its recorder on, once: on the virtual GPU, or on the CPU engine where torch has no
        CUDA."""
        if name not in self._zoo:
            self._zoo[name] = self.run_zoo(name)
        return self._zoo[name]

    def run_zoo(self, name: str, **options: Any) -> ZooRun:
        words = ("-m", name) if (ZOO / name).is_dir() else (str(ZOO / f"{name}.py"),)
        trace = self._folder / f"{name}-{self._num_runs}.trace"
        run = self.run(*words, cwd=ZOO, environment={"ZOO_RECORD": "1"}, trace=trace, **options)
        return ZooRun(run, trace)

    def close(self) -> None:
        self.warm.close()
