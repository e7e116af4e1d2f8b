"""Many runs in forks of one process: each as if it had a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell import api, gpus
from foretell.errors import ScriptError
from foretell.jobs import CaptureOptions, Job
from foretell.records import Estimate
from foretell.runs import OUTPUT, Warm
from foretell.runs.waiting import CannotIsolate, Program
from foretell.runs.warm import _Fork

TRAIN = """
import sys
import torch
print(torch.cuda.get_device_name(), sys.argv[1:])
model = torch.nn.Linear(int(sys.argv[1]), 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(64, int(sys.argv[1])).cuda()).sum().backward()
    optimizer.step()
if sys.argv[1] == "666":
    raise ValueError("of the script")
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([{"failed": "no overlayfs"}, {}], CannotIsolate),
        ([{"failed": "cannot drop capabilities"}, {"exit_status": 1}, {}], CannotIsolate),
        ([{}], CannotIsolate),
        ([{"bug": "Traceback ...\nKeyError: 'cwd'"}, {"exit_status": 1}, {}], RuntimeError),
    ],
)
def test_all_answers_about_a_fork_that_does_not_start_are_read(
    answers: list[dict[str, Any]], error: type[Exception], tmp_path: Path
) -> None:
    waiting = [*answers, {"pid": 7}]  # of the next run
    server: Any = SimpleNamespace(environment={}, ask=lambda question: None, read=lambda seconds: waiting.pop(0))
    output = tmp_path / "output"
    with pytest.raises(error):
        _Fork(server, Program(argv=("p",), environment={}, cwd=tmp_path, stdout=output, stderr=output), ())
    assert waiting == [{"pid": 7}]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path / "train.py"


def run(script: Path, size: int, name: str, *, warm: Warm | None, directory: Path) -> Estimate:
    directory.mkdir()
    options = CaptureOptions(stdout="stderr")
    job = Job(command=(script.name, str(size)), cwd=script.parent, gpu=gpus.find(name), options=options)
    return api.run(job, directory=directory, warm=warm).estimate


def test_a_fork_gives_what_a_process_gives(warm: Warm, script: Path, tmp_path: Path) -> None:
    of_process = run(script, 2048, "rtx-3060", warm=None, directory=tmp_path / "process")
    for number in range(2):
        of_fork = run(script, 2048, "rtx-3060", warm=warm, directory=tmp_path / f"fork{number}")
        assert of_fork.peak == of_process.peak
        assert of_fork.steps == of_process.steps
        assert of_fork.caveats == of_process.caveats


def test_every_fork_has_its_own_card(warm: Warm, script: Path, tmp_path: Path) -> None:
    for name in ("a100-40gb", "rtx-4060"):
        estimate = run(script, 512, name, warm=warm, directory=tmp_path / name)
        assert estimate.gpu.name == name
        assert gpus.find(name).device_name in (tmp_path / name / OUTPUT).read_text()


def test_every_fork_has_its_own_environment(
    warm: Warm, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(script, 512, "rtx-3060", warm=warm, directory=tmp_path / "first")
    script.write_text("import os; print('OF_THE_RUN is', os.environ.get('OF_THE_RUN'))\n" + TRAIN)
    for value in ("this", "that", None):
        if value is None:
            monkeypatch.delenv("OF_THE_RUN")
        else:
            monkeypatch.setenv("OF_THE_RUN", value)
        run(script, 512, "rtx-3060", warm=warm, directory=tmp_path / str(value))
        assert f"OF_THE_RUN is {value}\n" in (tmp_path / str(value) / OUTPUT).read_text()


def test_a_script_that_fails_does_not_end_the_process(warm: Warm, script: Path, tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="ValueError: of the script"):
        run(script, 666, "rtx-3060", warm=warm, directory=tmp_path / "failed")
    assert run(script, 512, "rtx-3060", warm=warm, directory=tmp_path / "next").verdict == "fits"


AT_EXIT = """
import atexit, ctypes, sys, weakref
library = ctypes.CDLL(None)
class Model: pass
model = Model()
weakref.finalize(model, print, "finalizer")
atexit.register(print, "handler in Python")
sys.kept = ctypes.create_string_buffer(b"handler in C")
library.__cxa_atexit(library.puts, sys.kept, None)
library.printf(b"not yet flushed\\n")
sys.exit(5)
"""


def test_lines_of_a_script_with_a_relative_path_are_the_users(warm: Warm, script: Path, tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    script.write_text("import torch\ntorch.nn.Linear(4, 4).cuda()(torch.ones(3).cuda())")
    job = Job(command=(script.name,), cwd=tmp_path, gpu=gpus.find("rtx-3060"), options=CaptureOptions(stdout="file"))
    with pytest.raises(ScriptError, match=rf"failed at {script}:2: RuntimeError"):
        _ = api.run(job, directory=tmp_path / "capture", warm=warm).estimate


def test_what_a_script_registers_for_its_exit_runs(warm: Warm, script: Path, tmp_path: Path) -> None:
    script.write_text(AT_EXIT)
    with pytest.raises(ScriptError, match="5"):
        run(script, 0, "rtx-3060", warm=warm, directory=tmp_path / "left")
    said = (tmp_path / "left" / OUTPUT).read_text().splitlines()
    assert sorted(said) == ["finalizer", "handler in C", "handler in Python", "not yet flushed"]


def test_a_process_that_died_is_started_again(warm: Warm, script: Path, tmp_path: Path) -> None:
    run(script, 512, "rtx-3060", warm=warm, directory=tmp_path / "before")
    (server,) = warm._servers.values()
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    assert run(script, 512, "rtx-3060", warm=warm, directory=tmp_path / "after").verdict == "fits"
