"""What strangers wrote into a trace does nothing to the terminal or the page; no terminal is an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import SEGMENT, training_run
from conftest import HANG_SECONDS
from foretell.analysis.verdict import estimate_of
from foretell.cli import main
from foretell.cli.terminal import printable
from foretell.report import notebook
from foretell.trace import Keeper, Trace, Unsupported, save

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e[/][bold]:smile:\r\b\x00"
TAGS = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"
HOSTILE = f"{ESCAPES}\nFITS{TAGS}\ud800"
NATIVE = ("--alloc-conf", "backend:native")
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def hostile(folder: Path) -> Trace:
    """A trace all of whose names are hostile."""
    capture = training_run(folder)
    capture.journal("caveat", text=HOSTILE).journal("not_sent", what=HOSTILE)
    capture.journal("ended_early", how="loader", step=2, what=HOSTILE)
    about = {"length": 9, "num_samples": 9, "batch_size": 1, "sampler": HOSTILE, "num_workers": 0}
    capture.journal("pass", number=0, **about)
    for number in range(2):
        tensors = [[HOSTILE, HOSTILE, [1, number]]]
        capture.journal("batch", loader=0, index=number, step=number, shape=number, num_elements=1, tensors=tensors)
    capture.journal("phase", phase="backward", step=1)
    capture.owners([HOSTILE, "forward"], marks=[(0, 0, 1, 0, 0, 0)], labels=[(0, 2, SEGMENT, 0, 0)])
    trace = capture.trace()
    return replace(
        trace,
        command=("python", HOSTILE),
        torch_version=HOSTILE,
        cuda_version=HOSTILE,
        gpu=replace(trace.gpu, name=f"x{HOSTILE}", device_name=HOSTILE),
        frames=tuple((f"/x/{HOSTILE}", line, HOSTILE) for _, line, _ in trace.frames),
        keepers=(Keeper(name=HOSTILE, what=HOSTILE, where=HOSTILE),),
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "capture").mkdir()
    save(hostile(tmp_path / "capture"), tmp_path / "x.trace")
    return tmp_path / "x.trace"


def test_no_control_character_is_printable() -> None:
    assert printable(HOSTILE) == f"]0;title[2J31m[/][bold]:smile:\nFITS{TAGS}?"
    assert printable("Größe, 大小,\t1 █ ■ ▁") == "Größe, 大小,\t1 █ ■ ▁"


@pytest.mark.parametrize("words", [["report", "X"], ["diff", "X", "X"], ["what-if", "X", *NATIVE]])
def test_escape_sequences_and_markup_of_a_trace_do_nothing(
    words: list[str], saved: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main([str(saved) if word == "X" else word for word in words]) == 0
    shown = capsys.readouterr()
    assert "[2J31m[/]" in shown.out  # as text
    assert not RAW.search(shown.out + shown.err)
    assert max(map(len, shown.out.splitlines())) <= 100 or words[0] == "what-if"  # tables keep their width


def test_a_message_of_a_hostile_trace_is_printed_without_its_control_characters(
    saved: Path, tmp_path: Path, capsys: Any
) -> None:
    save(replace(hostile(tmp_path / "capture"), unsupported=(Unsupported(what=HOSTILE, hint=""),)), saved)
    assert main(["report", str(saved)]) == 2
    shown = capsys.readouterr().err
    assert "[2J31m" in shown
    assert not RAW.search(shown)


def test_tags_in_a_trace_do_nothing_in_a_page(saved: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(saved), "--report", str(tmp_path / "x.html")]) == 0
    assert main(["diff", str(saved), str(saved), "--html", str(tmp_path / "diff.html")]) == 0
    pages = [(tmp_path / name).read_text() for name in ("x.html", "diff.html")]
    pages.append(notebook.render(estimate_of(hostile(tmp_path / "capture"))))
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foretell", *words]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS, **options)


def test_closed_standard_streams_are_no_error(saved: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m foretell report {saved}"
    assert subprocess.run(["sh", "-c", f"{command} >&- 2>&- <&-"], timeout=HANG_SECONDS).returncode == 0
    refused = subprocess.run(
        ["sh", "-c", f"{command} --json - >&-"], stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS
    )
    assert (refused.returncode, refused.stderr) == (
        2, "foretell: --json -: standard output is closed. Give a file name.\n",
    )  # fmt: skip


@pytest.mark.parametrize("words", [["gpus"], ["gpus", "--json"], ["--help"], ["--version"], ["report", "X"]])
def test_a_full_standard_output_is_one_line_and_exit_code_2(words: list[str], saved: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run(*[str(saved) if word == "X" else word for word in words], stdout=full)
    assert (done.returncode, done.stderr) == (
        2, "foretell: cannot write to standard output: No space left on device.\n",
    )  # fmt: skip


def test_full_standard_streams_leave_the_exit_code(saved: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "foretell", "report", str(saved), "--bogus"]
        assert subprocess.run(command, stdout=full, stderr=full, timeout=HANG_SECONDS).returncode == 2


def test_an_ascii_terminal_gets_ascii(saved: Path) -> None:
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""}
    done = run("report", str(saved), stdout=subprocess.PIPE, env={**os.environ, **ascii_only})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "..........." in done.stdout  # the bar


def test_a_bug_is_exit_code_70_with_its_traceback_in_a_file(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def broken(options: Any) -> int:
        raise KeyError("what\x1b[2J")

    monkeypatch.setattr("foretell.cli.gpus.execute", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["gpus"]) == 70
    shown = capsys.readouterr().err
    (file,) = tmp_path.iterdir()
    assert shown.startswith("foretell: internal error: KeyError: 'what")
    assert shown.endswith(f"which is in {file}.\n")
    assert "in broken" in file.read_text()


def test_a_machine_without_memory_is_not_a_bug(monkeypatch: Any, capsys: Any) -> None:
    def greedy(options: Any) -> int:
        raise MemoryError

    monkeypatch.setattr("foretell.cli.gpus.execute", greedy)
    assert main(["gpus"]) == 2
    assert "out of memory" in capsys.readouterr().err


def test_json_of_a_hostile_trace_is_read_back(saved: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(saved), "--json", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["torch"] == HOSTILE
    assert main(["diff", str(tmp_path / "x.json"), str(saved)]) == 0
