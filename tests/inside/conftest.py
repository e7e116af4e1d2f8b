"""Fixtures: a script run on the virtual GPU with the hooks of `capture/inside`, and what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "src" / "foretell" / "capture" / "bootstrap"
VIRTUAL = ROOT / "src" / "foretell" / "virtual"


@dataclass(frozen=True)
class Captured:
    """One script that has run to its end."""

    code: int
    stdout: str
    stderr: str
    directory: Path
    folder: Path
    """Where the script was started."""

    @property
    def main_journal(self) -> list[dict[str, Any]]:
        return _lines(self.directory / f"journal-{(self.directory / 'main').read_text()}.jsonl")

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.main_journal if line["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (line,) = self.lines(kind)
        return line

    @property
    def said(self) -> list[str]:
        return self.stdout.split("\n")[:-1]

    def check(self, code: int = 0) -> Captured:
        assert self.code == code, f"exit code {self.code}\n{self.stdout[-2000:]}\n{self.stderr[-4000:]}"
        return self


Run = Callable[..., Captured]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter with a CUDA build of torch; FORETELL_TEST_PYTHON chooses another one."""
    executable = os.environ.get("FORETELL_TEST_PYTHON", sys.executable)
    asked = subprocess.run(
        [executable, "-c", "import torch; print(torch.version.cuda or '')"], capture_output=True, text=True
    )
    if not asked.stdout.strip():
        pytest.skip(f"{executable} has no CUDA build of torch")
    return executable


@pytest.fixture(scope="session")
def virtual_gpu() -> dict[str, str]:
    """The environment in which a process sees the virtual GPU; FORETELL_TEST_LIBCUDA chooses another library."""
    other = os.environ.get("FORETELL_TEST_LIBCUDA")
    libraries = [other] if other else [str(VIRTUAL / name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    if not all(Path(library).exists() for library in libraries):
        pytest.skip(f"the virtual GPU is not built: {libraries[0]} is missing (make native)")
    return {"LD_PRELOAD": ":".join(libraries)}


@pytest.fixture(scope="session")
def capture(python: str, virtual_gpu: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`capture("import torch ...", steps="auto")` runs the text as a script; `hooks=False` leaves all hooks out."""

    def run(
        script: str,
        *arguments: str,
        hooks: bool = True,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> Captured:
        folder = folder or tmp_path_factory.mktemp("work")
        directory = tmp_path_factory.mktemp("capture")
        file = tmp_path_factory.mktemp("script") / "train.py"
        file.write_text(textwrap.dedent(script))
        env = {**os.environ, **virtual_gpu, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
        if hooks:
            env["FORETELL_CAPTURE"] = json.dumps({"directory": str(directory), **options})
            env["PYTHONPATH"] = str(BOOTSTRAP)
        process = subprocess.run(
            [python, str(file), *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=240
        )
        return Captured(process.returncode, process.stdout, process.stderr, directory, folder)

    return run
