"""Whoever is killed, and when: no process and no scratch folder is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from conftest import HANG_SECONDS, ROOT, no_kernel_isolation, processes_with
from foretell import gpus
from foretell.jobs import CaptureOptions, Job
from foretell.namespaces.files import remove_owned
from foretell.runs import launch
from foretell.runs.environment import OWNER
from foretell.runs.scratch import scratch_folder

from .conftest import HERE


@pytest.fixture(scope="module", autouse=True)
def _has_kernel_isolation(tmp_path_factory: pytest.TempPathFactory) -> None:
    job = Job(command=(sys.executable, "-c", ""), gpu=gpus.find("rtx-3060"), options=CaptureOptions())
    isolation = launch(job, tmp_path_factory.mktemp("probe")).isolation
    if isolation.mode != "kernel":
        no_kernel_isolation(isolation.reason)


class Running:
    """`foretell run stubborn.py`, with little patience and a folder of its own for temporary files."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder = folder
        self._marker = str(folder)
        (folder / "tmp").mkdir()
        command = [sys.executable, str(HERE / "impatient.py"), "run", "--quiet", "--gpu", "rtx-3060", *words]
        self.process = subprocess.Popen(
            [*command, "--", sys.executable, str(HERE / "stubborn.py"), self._marker], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, cwd=folder, env={**os.environ, "TMPDIR": str(folder / "tmp")},
            preexec_fn=lambda: signal.signal(signal.SIGQUIT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.output: IO[bytes] = self.process.stdout
        self.errors: IO[bytes] = self.process.stderr

    def wait_until_ready(self) -> None:
        assert self.output.readline() == b"ready\n"

    def script_pid(self) -> int:
        """Of process 2 in its namespace; its forks have the same command line."""
        pids = [pid for pid, words in _commands() if words[1:3] == [str(HERE / "stubborn.py"), self._marker]]
        status = {pid: Path(f"/proc/{pid}/status").read_text() for pid in pids}
        (pid,) = [pid for pid in pids if re.search(r"^NSpid:.*\t2$", status[pid], re.MULTILINE)]
        return pid

    def check_nothing_is_left(self) -> str:
        """After the last process has ended; returns what foretell said."""
        self.output.read()
        said = self.errors.read().decode()
        self.process.wait()
        while pids := self._pids():
            _wait_for_end(pids[0])
        assert processes_with(self._marker) == []
        assert os.listdir(self._folder / "tmp") == []
        return said


    def _pids(self) -> list[int]:
        """Of the processes that have its environment, the supervisor of the namespaces among them."""
        variable = f"TMPDIR={self._folder / 'tmp'}".encode()
        return [pid for pid in _all_pids() if variable in _read(f"/proc/{pid}/environ").split(b"\0")]


def _wait_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([handle], [], [], HANG_SECONDS)
            assert ended, f"{pid} is left: {_read(f'/proc/{pid}/cmdline')!r}"
        finally:
            os.close(handle)


def _all_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _read(path: str) -> bytes:
    """Empty if the process has ended."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _commands() -> Iterator[tuple[int, list[str]]]:
    for pid in _all_pids():
        yield pid, _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.process.kill()  # after a test that failed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT, signal.SIGUSR1, signal.SIGSEGV])
def test_a_signal_that_kills_foretell_ends_everything(running: Running, number: signal.Signals) -> None:
    running.wait_until_ready()
    running.process.send_signal(number)
    running.check_nothing_is_left()
    assert running.process.returncode == -number


def test_a_signal_to_foretell_before_the_script_runs_ends_everything(running: Running) -> None:
    running.process.send_signal(signal.SIGKILL)
    running.check_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_asks_foretell_ends_everything(running: Running, number: signal.Signals) -> None:
    running.wait_until_ready()
    running.process.send_signal(number)
    running.check_nothing_is_left()
    assert running.process.returncode == 130


def test_impatient_interrupts_leave_nothing_behind(running: Running) -> None:
    """The script ignores them; whatever is said then must be true."""
    running.wait_until_ready()
    while running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        try:
            running.process.wait(0.3)
        except subprocess.TimeoutExpired:
            continue
    said = running.check_nothing_is_left()
    assert running.process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in said


def test_a_killed_script_takes_all_it_started_with_it(running: Running) -> None:
    running.wait_until_ready()
    os.kill(running.script_pid(), signal.SIGKILL)
    running.check_nothing_is_left()
    assert running.process.returncode == 1


def test_a_time_limit_ends_everything(tmp_path: Path) -> None:
    running = Running(tmp_path, "--timeout", "3")
    running.check_nothing_is_left()
    assert running.process.returncode == 1


# --- scratch folders --------------------------------------------------------------------------------------------------


def test_the_scratch_folder_of_a_process_that_died_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os; from foretell.runs.scratch import scratch_folder as s; s = s(); s.__enter__(); os._exit(0)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (left,) = tmp_path.iterdir()
    (left / "layers" / "0" / "work" / "work").mkdir(parents=True)
    (left / "layers" / "0" / "work" / "work").chmod(0)  # as overlayfs leaves it
    (tmp_path / "foretell-of-somebody").mkdir()
    with scratch_folder() as path, scratch_folder() as other:
        assert path != other
        assert sorted(tmp_path.iterdir()) == sorted([path, other, tmp_path / "foretell-of-somebody"])
    assert [each.name for each in tmp_path.iterdir()] == ["foretell-of-somebody"]


@pytest.mark.parametrize("num_removed", range(5))
def test_a_scratch_folder_whose_removal_was_interrupted_is_removed_by_the_next_process(
    num_removed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "foretell-left"
    (left / "layers" / "0").mkdir(parents=True)
    for name in ("a", OWNER, "z"):
        (left / name).touch()
    calls = itertools.count()

    def interrupted(remove: Callable[[str], None], path: str) -> None:
        if next(calls) == num_removed:
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patched:
        for name in ("unlink", "rmdir"):
            patched.setattr(os, name, partial(interrupted, getattr(os, name)))
        with pytest.raises(KeyboardInterrupt):
            remove_owned(str(left), OWNER)
    assert (left / OWNER).exists()
    with scratch_folder() as new:
        assert list(tmp_path.iterdir()) == [new]


def test_a_scratch_folder_keeps_its_owner_while_anything_else_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / OWNER).touch()
    (tmp_path / "a").touch()
    monkeypatch.setattr("foretell.namespaces.files.remove_tree", lambda path: None)
    remove_owned(str(tmp_path), OWNER)
    assert sorted(os.listdir(tmp_path)) == sorted([OWNER, "a"])
