"""Copies of what a script wrote."""

from __future__ import annotations

import os
from pathlib import Path

from foretell.namespaces.files import copy_tree

LARGE = 1 << 30


def test_a_copy_has_the_content_holes_mode_and_times_of_the_file(tmp_path: Path) -> None:
    source, copy = tmp_path / "source" / "model.pt", tmp_path / "copy" / "model.pt"
    source.parent.mkdir()
    with source.open("wb") as file:
        for offset, text in ((0, b"start"), (LARGE // 2, b"middle"), (LARGE, b"end")):
            file.seek(offset)
            file.write(text)
        file.truncate(LARGE + (1 << 20))
    source.chmod(0o751)
    os.utime(source, ns=(10**18, 10**18))
    copy_tree(str(source.parent), str(copy.parent))
    with copy.open("rb") as file:
        for offset, text in ((0, b"start\0"), (LARGE // 2 - 1, b"\0middle\0"), (LARGE - 1, b"\0end\0")):
            file.seek(offset)
            assert file.read(len(text)) == text
    was, state = source.stat(), copy.stat()
    assert (state.st_size, state.st_mode, state.st_mtime_ns) == (was.st_size, was.st_mode, was.st_mtime_ns)
    assert state.st_blocks * 512 < 1 << 20


def test_a_second_copy_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    """Trackers and trainers keep a link to the latest run or checkpoint."""
    source, copy, elsewhere = tmp_path / "source", tmp_path / "copy", tmp_path / "elsewhere"
    (source / "runs").mkdir(parents=True)
    (source / "runs" / "latest").symlink_to("first")
    (source / "runs" / "first").write_text("first")
    (source / "runs" / "first").chmod(0o444)
    elsewhere.write_text("mine")
    for _ in range(2):
        copy_tree(str(source), str(copy))
    (copy / "runs" / "first").unlink()
    (copy / "runs" / "first").symlink_to(elsewhere)
    (copy / "mine").write_text("mine")
    copy_tree(str(source), str(copy))
    assert os.readlink(copy / "runs" / "latest") == "first"
    assert (copy / "runs" / "latest").read_text() == "first"
    assert elsewhere.read_text() == (copy / "mine").read_text() == "mine"


def test_a_pipe_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "pipe")
    copy_tree(str(tmp_path / "source"), str(tmp_path / "copy"))
    assert list((tmp_path / "copy").iterdir()) == []
