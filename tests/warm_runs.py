"""Many `foretell run`s of scripts, each a fork of one process that has torch and its friends imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from conftest import ForetellRun
from foretell import api, gpus
from foretell.capture import CaptureOptions, Command, WarmProcess
from foretell.capture.launch import OUTPUT
from foretell.errors import ForetellError
from foretell.report import json as report_json

MODULES = ("torchvision", "transformers", "timm")


class WarmRuns:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_runs = 0
        self._processes: dict[str, WarmProcess] = {}

    def run(
        self, script: Path, *arguments: str, gpu: str = "rtx-3060", trace: Path | None = None,
        environment: dict[str, str] | None = None, **options: Any,
    ) -> ForetellRun:  # fmt: skip
        """As `foretell run --steps all`; `options` are those of CaptureOptions."""
        self._num_runs += 1
        directory = self._folder / str(self._num_runs)
        directory.mkdir()
        engine = options.get("engine", "auto")
        words = (sys.executable, str(script), *arguments)
        try:
            with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1", **(environment or {})}):
                estimate = api.run(
                    Command(argv=words, python=sys.executable),
                    gpu=gpus.find(gpu),
                    options=CaptureOptions(**{"steps": "all", "timeout_seconds": 200, **options}),
                    trace_path=trace,
                    directory=directory,
                    launcher=self._process(engine).launch,
                )
        except ForetellError as error:
            return ForetellRun(error.exit_code, self._output(directory), str(error), {})
        result = json.loads(report_json.render(estimate))
        return ForetellRun(3 if estimate.verdict == "oom" else 0, self._output(directory), "", result)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _process(self, engine: str) -> WarmProcess:
        if engine not in self._processes:
            folder = self._folder / engine
            folder.mkdir()
            self._processes[engine] = WarmProcess(folder, modules=MODULES)
        return self._processes[engine]

    def _output(self, directory: Path) -> str:
        path = directory / OUTPUT
        return path.read_text(errors="replace") if path.exists() else ""
