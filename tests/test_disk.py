"""Files are written whole or not at all; links, devices and pipes stay what they are."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import training_run
from conftest import HANG_SECONDS
from foretell import disk
from foretell.cli import main
from foretell.errors import TraceError
from foretell.trace import load, save


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "capture").mkdir()
    save(training_run(tmp_path / "capture").trace(), tmp_path / "x.trace")
    return tmp_path / "x.trace"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_ends_writing_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")

    def write_half() -> None:
        with disk.writing(tmp_path / "x") as file:
            file.write(b"new")
            raise error

    with pytest.raises((TraceError, KeyboardInterrupt)):
        write_half()
    assert (names_in(tmp_path), (tmp_path / "x").read_text()) == (["x"], "old")


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/x")
    for text in ("first", "second"):  # the link dangles at first
        disk.write(tmp_path / "link", text)
        assert (tmp_path / "folder" / "x").read_text() == text
    assert os.readlink(tmp_path / "link") == "folder/x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device, or replace one")
def test_a_device_is_written_to_and_never_replaced(tmp_path: Path, saved: Path) -> None:
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container may not make devices")
    trace = load(saved)
    for size in range(0, 10_000, 1_000):  # where a write of the zip meets the end of a buffer
        save(replace(trace, caveats=(random.Random(0).randbytes(size).hex(),)), tmp_path / "null")
    disk.write(tmp_path / "null", "text")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_a_pipe_gets_the_whole_file(tmp_path: Path, saved: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    save(load(saved), tmp_path / "pipe")
    reader.join()
    (tmp_path / "copy.trace").write_bytes(received[0])
    assert load(tmp_path / "copy.trace").command == load(saved).command
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_an_open_descriptor_is_written_where_it_stands(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb", buffering=0) as file:
        file.write(b"before ")
        disk.write(Path(f"/dev/fd/{file.fileno()}"), "after")
    assert (tmp_path / "x").read_text() == "before after"


def test_standard_output_by_name_comes_after_what_was_printed(saved: Path, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-m", "foretell", "report", str(saved), "--json", "/dev/stdout"]
        assert subprocess.run(command, stdout=out, timeout=HANG_SECONDS).returncode == 0
    table, _, document = (tmp_path / "out").read_text().partition("{\n")
    assert "FITS" in table
    assert '"schema": "foretell.estimate/1"' in document


def test_traces_and_reports_are_for_their_owner_alone(saved: Path, tmp_path: Path, capsys: Any) -> None:
    names = {"--json": "x.json", "--report": "x.html", "--snapshot": "x.pickle"}
    (tmp_path / "x.json").write_text("old")
    (tmp_path / "x.json").chmod(0o644)
    words = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert main(["report", str(saved), *words]) == 0
    assert main(["diff", str(saved), str(saved), "--html", str(tmp_path / "diff.html")]) == 0
    for name in (*names.values(), "x.trace", "diff.html"):
        assert mode_of(tmp_path / name) == 0o600, name


def test_other_files_have_the_usual_mode_or_keep_theirs(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        disk.write(tmp_path / "new", "", is_private=False)
    finally:
        os.umask(before)
    (tmp_path / "old").write_text("")
    (tmp_path / "old").chmod(0o604)
    disk.write(tmp_path / "old", "x", is_private=False)
    assert (mode_of(tmp_path / "new"), mode_of(tmp_path / "old")) == (0o640, 0o604)


def test_a_file_that_cannot_be_renamed_over_is_written_in_place(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "x").write_text("old")

    def busy(*args: Any) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    disk.write(tmp_path / "x", "new")
    assert (names_in(tmp_path), (tmp_path / "x").read_text()) == (["x"], "new")


@pytest.mark.parametrize("option", ["--json", "--report", "--snapshot", "--trace"])
def test_every_file_that_is_written_is_named_on_standard_error(option: str, saved: Path, capsys: Any) -> None:
    words = ["what-if", str(saved), "--gpu", "rtx-4090", option, str(saved.with_name("out"))]
    assert main(words) == 0
    size = saved.with_name("out").stat().st_size
    lines = [line for line in capsys.readouterr().err.splitlines() if "wrote" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"foretell: wrote {saved.with_name('out')} ({size / 1024:.1f} KiB")


def test_a_target_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, monkeypatch: Any) -> None:
    def full(*args: Any, **options: Any) -> Any:
        file = io.FileIO(os.open("/dev/full", os.O_WRONLY), "wb")
        return io.BufferedWriter(file)

    assert disk.why_not_writable(tmp_path / "x") is None
    assert disk.why_not_writable(Path("/dev/null")) is None
    assert disk.why_not_writable(tmp_path) == "is a folder. Give a file name"
    assert disk.why_not_writable(tmp_path / "no" / "x") == f"no such folder: {tmp_path / 'no'}"
    assert disk.why_not_writable(tmp_path / ("x" * 300)) == "cannot be written: File name too long"
    assert disk.why_not_writable(Path("/proc/x")) is not None  # a folder in which nobody may write, root neither
    assert names_in(tmp_path) == []
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert disk.why_not_writable(tmp_path / "x") == "cannot be written: no space left on the disk"


def test_a_link_that_leads_to_itself_is_told(tmp_path: Path, saved: Path, capsys: Any) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for words in (["report", loop], ["report", saved, "--json", loop / "x"], ["diff", saved, loop]):
        assert main(list(map(str, words))) == 2
        assert str(loop) in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--trace", "--report", "--snapshot"])
def test_a_run_does_not_start_with_a_target_that_cannot_be_written(option: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "train.py").write_text("")
    assert main(["run", option, "/proc/x", str(tmp_path / "train.py")]) == 2
    assert f"{option} /proc/x: cannot be written" in capsys.readouterr().err
    assert main(["run", option, "", str(tmp_path / "train.py")]) == 2
    assert capsys.readouterr().err.startswith(f"foretell: {option}")


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1234")
    assert disk.read(tmp_path / "x", most_bytes=4) == b"1234"
    with pytest.raises(OSError, match="larger than 0 MiB"):
        disk.read(tmp_path / "x", most_bytes=3)
    with pytest.raises(OSError, match="a device, not a file"):
        disk.read(Path("/dev/zero"), most_bytes=4)


def test_a_pipe_that_never_ends_is_read_up_to_the_limit(tmp_path: Path) -> None:
    with subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        with pytest.raises(OSError, match="larger than 32 MiB"):
            disk.read(Path(f"/dev/fd/{endless.stdout.fileno()}"), most_bytes=32 << 20)
        endless.kill()


def test_packed_data_is_unpacked_up_to_the_limit() -> None:
    packed = gzip.compress(bytes(1000))
    assert disk.unpack(packed, most_bytes=1000) == bytes(1000)
    with pytest.raises(OSError, match="when unpacked"):
        disk.unpack(packed, most_bytes=999)
