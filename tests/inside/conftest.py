"""Fixtures: a script run on the virtual GPU with the hooks of `inside`, and what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG_SECONDS
from foretell.protocol.journal import mistake_in, mistake_in_types
from foretell.runs import Program, Warm, Watch, find_torch
from foretell.runs.imports import worth_importing

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "src" / "foretell" / "inside" / "bootstrap"
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
    """Each is as the protocol says."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        values = {name: value for name, value in line.items() if name not in ("kind", "time_us")}
        mistake = mistake_in(line["kind"], values) or mistake_in_types(line["kind"], values)
        assert mistake is None, mistake
    return lines


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter with a CUDA build of torch; FORETELL_TEST_PYTHON chooses another one."""
    executable = os.environ.get("FORETELL_TEST_PYTHON", sys.executable)
    torch = find_torch(executable)
    if torch is None or torch.cuda is None:
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
def capture(python: str, virtual_gpu: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """`capture("import torch ...", steps="auto")` runs the text as a script; `hooks=False` leaves all hooks out.

    Each is a fork of one process that has imported torch. `cold=True` starts a Python of its own: for tests of the
    start and the end of an interpreter, and for packages that would be imported before the fork, so before the hooks.
    """
    warm = Warm()

    def run(
        script: str,
        *arguments: str,
        hooks: bool = True,
        cold: bool = False,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> Captured:
        folder = folder or tmp_path_factory.mktemp("work")
        directory = tmp_path_factory.mktemp("capture")
        place = tmp_path_factory.mktemp("script")
        (place / "train.py").write_text(textwrap.dedent(script))
        env = {**os.environ, **virtual_gpu, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
        if hooks:
            env["FORETELL_CAPTURE"] = json.dumps({"directory": str(directory), **options})
        if hooks or not cold:  # without FORETELL_CAPTURE the bootstrap does nothing, and all forks have one parent
            env["PYTHONPATH"] = str(BOOTSTRAP)
        program = Program(
            argv=(python, str(place / "train.py"), *arguments),
            environment=env,
            cwd=folder,
            stdout=place / "stdout",
            stderr=place / "stderr",
            timeout_seconds=HANG_SECONDS,
        )
        if cold:
            code = _run_cold(program)
        else:
            imported = worth_importing(program.argv[1:], folder)
            assert not imported, f"{imported} would be imported for all later tests as well: cold=True"
            code = warm.run(program, Watch(directory)).exit_status
        return Captured(code, (place / "stdout").read_text(), (place / "stderr").read_text(), directory, folder)

    yield run
    warm.close()


def _run_cold(program: Program) -> int:
    with open(program.stdout, "w") as stdout, open(program.stderr, "w") as stderr:
        return subprocess.run(
            program.argv, cwd=program.cwd, env=program.environment, stdout=stdout, stderr=stderr,
            timeout=program.timeout_seconds,
        ).returncode  # fmt: skip
