"""Files that a job finds changed at their own path, while the user's stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from foretell import gpus
from foretell.errors import UsageError
from foretell.jobs import CaptureOptions, Job
from foretell.protocol.journal import WRITES, lines_of, read_journal
from foretell.runs import OUTPUT, Warm, launch
from foretell.runs.environment import private_cache

READS = """
import os
print("".join(open(name).read() for name in ("config.yaml", "sub/link.toml")))
print(os.path.getsize("config.yaml"), sorted(os.listdir(".")))
open("written.txt", "w").close()
"""


def job_of(folder: Path, isolation: Literal["auto", "kernel", "python", "none"], **changes: Any) -> Job:
    (folder / "train.py").write_text(READS)
    (folder / "config.yaml").write_text("batch: 8\n")
    (folder / "other.toml").write_text("a = 1\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "link.toml").symlink_to("../other.toml")
    options = CaptureOptions(isolation=isolation, stdout="file")
    files = ((folder / "config.yaml", "batch: 4096 # ü\r\n"), (folder / "other.toml", "a = 22\n"))
    given = {"command": ("train.py",), "gpu": gpus.find("rtx-3060"), "cwd": folder, "options": options, "files": files}
    return Job(**{**given, **changes})


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("isolation", ["kernel", "python"])
def test_a_script_finds_the_text_of_the_job_at_the_path_of_the_file(
    isolation: Literal["kernel", "python"], is_warm: bool, tmp_path: Path, warm: Warm
) -> None:
    user, capture = tmp_path / "user", tmp_path / "capture"
    for folder in (user, capture):
        folder.mkdir()
    job = job_of(user, isolation)
    result = launch(job, capture, warm=warm if is_warm else None)
    assert result.exit_status == 0, (capture / OUTPUT).read_text()
    printed = (capture / OUTPUT).read_bytes().decode()
    assert printed.splitlines()[:2] == ["batch: 4096 # ü", "a = 22"]
    names = ["config.yaml", "other.toml", "sub", "train.py"]
    assert printed.splitlines()[-1] == f"{len(job.files[0][1].encode())} {names}"
    assert (user / "config.yaml").read_text() == "batch: 8\n"
    assert (user / "other.toml").read_text() == "a = 1\n"
    writes = read_journal(capture / WRITES) if isolation == "kernel" else lines_of(capture, "redirected_write")
    assert [Path(line["path"]).name for line in writes] == ["written.txt"]


def test_without_isolation_no_file_can_be_changed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--isolation none: the script must find .*config.yaml changed"):
        job_of(tmp_path, "none")


def test_a_file_in_a_cache_that_runs_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shared = private_cache("compiled", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert shared is not None
    with pytest.raises(UsageError, match="is in a cache"):
        launch(job_of(tmp_path, "kernel", files=((shared / "a.json", "{}"),)), tmp_path)


def test_files_travel_with_the_job_and_change_its_key(tmp_path: Path) -> None:
    job = job_of(tmp_path, "auto")
    assert Job.from_json(job.to_json()) == job
    (tmp_path / "sub" / "link.toml").unlink()
    (tmp_path / "sub").rmdir()
    assert job.key != job_of(tmp_path, "auto", files=()).key
