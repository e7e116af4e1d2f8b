"""Whoever writes: nothing of the user's is changed in kernel isolation, and in Python's exactly what the docs say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import HANG_SECONDS, ROOT, no_kernel_isolation
from foretell import api, gpus
from foretell.jobs import CaptureOptions, Job
from foretell.records import Isolation, IsolationMode
from foretell.runs import OUTPUT

from .conftest import HERE, MakeCanaries, State, state_of
from .writers import WRITERS


@dataclass(frozen=True)
class Written:
    """A run of writers.py."""

    folder: Path
    said: dict[str, str]
    """By writer: `did`, `left out: reason` or `failed: error`."""
    before: State
    after: State
    isolation: Isolation | None
    redirected: set[str]

    def changed(self) -> set[str]:
        """The writers whose files are no longer what they were."""
        names = {name for name in {*self.before, *self.after} if self.before.get(name) != self.after.get(name)}
        return {name.split("/")[0] for name in names}


def write(mode: IsolationMode, folder: Path, binaries: Path, make_canaries: MakeCanaries) -> Written:
    before, capture = make_canaries(folder / "files"), folder / "capture"
    capture.mkdir()
    options = CaptureOptions(isolation=mode, steps="all", stdout="file", timeout_seconds=HANG_SECONDS)
    command = (str(HERE / "writers.py"), str(folder / "files"), str(binaries))
    done = api.run(Job(command=command, gpu=gpus.find("rtx-3060"), options=options, cwd=folder), directory=capture)
    output = (capture / OUTPUT).read_text()
    lines = re.findall(r"^(did|left out|failed) (\w+)(.*)$", output, re.MULTILINE)
    said = {name: how + more for how, name, more in lines}
    assert set(said) == set(WRITERS), output
    redirected = {path.removeprefix(f"{folder}/files/") for path in done.trace.redirected_writes}
    return Written(folder, said, before, state_of(folder / "files"), done.trace.isolation, redirected)


@pytest.fixture(scope="module")
def by_kernel(tmp_path_factory: pytest.TempPathFactory, binaries: Path, make_canaries: MakeCanaries) -> Written:
    found = write("auto", tmp_path_factory.mktemp("kernel"), binaries, make_canaries)
    assert found.isolation is not None
    if found.isolation.mode != "kernel":
        no_kernel_isolation(found.isolation.reason)
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_changes_nothing_and_sees_what_it_wrote(by_kernel: Written, name: str) -> None:
    if by_kernel.said[name].startswith("left out"):
        pytest.skip(by_kernel.said[name])
    assert by_kernel.said[name] == "did"
    assert name not in by_kernel.changed()


def test_nothing_at_all_has_changed(by_kernel: Written) -> None:
    assert by_kernel.after == by_kernel.before


def test_the_result_lists_what_was_written_and_deleted(by_kernel: Written) -> None:
    expected = {"file_io/mine", "posix_unlink/mine", "mknod/new", "sqlite_uri/new.db", "shell_cp/mine", "shell_rm/old"}
    expected |= {"rename_of_a_folder/old", "rename_of_a_folder/renamed/inner", "daemon/done", "torch_save/mine"}
    assert expected <= by_kernel.redirected
    assert not any("__pycache__" in path for path in by_kernel.redirected)


# --- the fall-back ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_python(tmp_path_factory: pytest.TempPathFactory, binaries: Path, make_canaries: MakeCanaries) -> Written:
    return write("python", tmp_path_factory.mktemp("python"), binaries, make_canaries)


def documented(title: str) -> set[str]:
    """The words in `code` of the table row with that title, in docs/isolation.md."""
    (row,) = re.findall(rf"^\| {title} \|(.*)\|$", (ROOT / "docs" / "isolation.md").read_text(), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def test_the_docs_list_exactly_the_writers_that_python_does_not_hold(by_python: Written) -> None:
    there = {name for name, said in by_python.said.items() if not said.startswith("left out")}
    listed = documented("change the real files")
    assert by_python.changed() == listed & there
    assert listed <= set(WRITERS)


def test_the_docs_list_exactly_the_writers_that_fail_in_python_isolation(by_python: Written) -> None:
    failed = {name for name, said in by_python.said.items() if said.startswith("failed")}
    there = {name for name, said in by_python.said.items() if not said.startswith("left out")}
    assert failed == documented("fail, because another program does not see what the script wrote") & there
