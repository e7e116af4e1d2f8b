"""Runs in the child, on the virtual GPU: one test, with the options of the pytest that found it. Started as a script.

The reports of pytest go to the capture folder, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TOLD = "FORETELL_PYTEST"
"""The variable with what to run: the caller's sys.path, the arguments of its pytest, the test."""
REPORTS = "reports.jsonl"


class Reporter:
    """Collects the one test, and keeps its reports."""

    def __init__(self, test: str, path: Path) -> None:
        self._test = test
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config
        config.args = [self._test]
        for name, value in {"usepdb": False, "xmlpath": None}.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A test that foretell has ended, because it has seen enough steps, has passed."""
        report = yield
        if call.excinfo is not None and call.excinfo.type.__name__ == "EnoughSeen":
            report.outcome, report.longrepr = "passed", None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"error": report.longreprtext})

    def _write(self, data: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")


def main() -> int:
    told = json.loads(os.environ.pop(TOLD))
    sys.path[:] = told["path"]
    folder = Path(json.loads(os.environ["FORETELL_CAPTURE"])["directory"])
    return int(pytest.main(told["args"], plugins=[Reporter(told["test"], folder / REPORTS)]))


if __name__ == "__main__":
    sys.exit(main())
