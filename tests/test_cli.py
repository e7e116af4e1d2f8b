from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import CaptureFolder, device, training_run
from conftest import HANG_SECONDS
from foretell import api
from foretell.advice.advise import Findings
from foretell.cli import main
from foretell.cli.jobs import prepare, progress
from foretell.cli.main import Parser
from foretell.cli.run import add_arguments
from foretell.cli.terminal import fresh_line
from foretell.errors import UnsupportedError
from foretell.runs import Progress, Watch
from foretell.trace import from_capture, save

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def foretell(tmp_path: Path) -> Run:
    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "foretell", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=HANG_SECONDS, **options)

    return run


def test_help_imports_neither_rich_nor_torch_nor_the_rooms() -> None:
    code = "import sys; from foretell.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = ('rich', 'torch', 'cloudpickle')\n"
    code += "print([m for m in sys.modules if m.split('.')[0] in heavy], file=sys.stderr)\n"
    code += "print('foretell.trace' in sys.modules, 'foretell.gpus' in sys.modules, file=sys.stderr)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "examples:" in shown.stdout
    assert shown.stderr.splitlines() == ["[]", "False False"]


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["run", "train.py", "--gpu", "x"], ["train.py", "--gpu", "x"]),
        (["run", "--gpu", "a100", "train.py", "--steps", "3"], ["train.py", "--steps", "3"]),
        (["run", "--gpu=a100", "--quiet", "-m", "pkg", "-x"], ["-m", "pkg", "-x"]),
        (["run", "--steps", "all", "--", "python", "-u", "x.py"], ["python", "-u", "x.py"]),
        (["run", "--json", "-", "x.py", "--", "y"], ["x.py", "--", "y"]),
    ],
)
def test_all_that_follows_the_script_is_the_scripts(words: list[str], begins: list[str]) -> None:
    parser = Parser()
    add_arguments(parser)
    prepared = prepare(parser, words)
    assert parser.parse_args(prepared[1:]).job == begins


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rum"], "invalid choice"),
        (["run", "--bogus", "x.py"], "unknown option --bogus"),
        (["run"], "nothing to run"),
        (["run", "missing.py"], "no such script: missing.py"),
        (["run", "--gpu", "rtx9999", "missing.py"], "unknown GPU"),
        (["run", "--gpu", "", "missing.py"], "the name of the GPU is empty"),
        (["run", "--gpu", "9999999999999GiB,sm80", "missing.py"], "is larger than any memory"),
        (["run", "--gpu", "17TiB,sm80", "missing.py"], "has more than 16 TiB"),
        (["run", "--gpu", "24GiB,sm89,99999sms", "missing.py"], "1 to 4096 SMs"),
        (["run", "--gpu", "24GiB,sm89,99999999999sms", "missing.py"], "not a GPU"),
        (["run", "--timeout", "nan", "missing.py"], "--timeout nan: must be more than 0"),
        (["run", "--timeout", "inf", "missing.py"], "--timeout inf: must be more than 0"),
        (["run", "--timeout", "-1", "missing.py"], "--timeout -1: must be more than 0"),
        (["run", "--steps", "²", "missing.py"], "--steps ²"),
        (["run", "--steps", "9" * 5000, "missing.py"], "must be a number"),
        (["run", "--context", "", "missing.py"], "not a size: ''"),
        (["run", "--context", "9" * 5000, "missing.py"], "is larger than any memory"),
        (["run", "--keep-writes", "", "missing.py"], "the name of the folder is empty"),
        (["run", "--keep-writes", "/dev/null", "missing.py"], "--keep-writes /dev/null: File exists"),
        (["run", "--keep-writes", "/proc", "missing.py"], "--keep-writes /proc: cannot be written"),
        (["run", "--profile", "/dev/zero", "missing.py"], "a device, not a file"),
        (["run", ""], "nothing to run"),
        (["run", "-m", ""], "needs a module name"),
        (["import", "/dev/zero", "--gpu", "rtx-3060"], "a device, not a file"),
        (["import", "/proc/self/mem", "--gpu", "rtx-3060"], "Input/output error"),
        (["import", "missing.json", "--gpu", ""], "the name of the GPU is empty"),
        (["import", "missing.json", "--gpu", "rtx-3060", "--context", "99GiB"], "rtx-3060 has only"),
        (["report", "/dev/zero"], "a device, not a file"),
        (["report", "/proc/self/mem"], "cannot read the trace /proc/self/mem: Input/output error"),
        (["diff", "/dev/zero", "/dev/zero"], "a device, not a file"),
        (["evaluate", ".", "--workers", "²"], "--workers ²"),
        (["run", "--steps", "some", "missing.py"], "--steps some"),
        (["run", "--context", "much", "missing.py"], "not a size"),
        (["run", "--engine", "tpu", "missing.py"], "invalid choice: 'tpu'"),
        (["run", "--engine", "virtual", "--execute", "missing.py"], "--execute works only with the CPU engine"),
        (["run", "--trace", "no/such/folder/x", "missing.py"], "no such folder"),
        (["run", "torchrun", "--nnodes=2", "x.py"], "no such script: x.py"),
        (["report", "missing.trace"], "no such trace"),
        (["gpus", "voodoo"], "unknown GPU"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: list[str], message: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("foretell.runs.command.refuse_torch", lambda torch, python, engine: None)
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.startswith("foretell: ")
    assert output.err.count("\n") == 1


def test_the_table_of_cards_is_shown_and_given_as_json(capsys: Any) -> None:
    assert main(["gpus"]) == 0
    assert "rtx-3060" in capsys.readouterr().out
    assert main(["gpus", "--json", "rtx 3060"]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert (card["name"], card["total_bytes"], card["compute_capability"]) == ("rtx-3060", 12622168064, [8, 6])


def test_a_reader_that_leaves_is_no_error(foretell: Run) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "foretell", "gpus"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_saved_trace_is_reported_with_the_exit_code_of_its_verdict(tmp_path: Path, capsys: Any) -> None:
    folder = training_run(tmp_path)
    save(folder.trace(), tmp_path / "fits.trace")
    assert main(["report", str(tmp_path / "fits.trace"), "--json", "-"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["verdict"] == "fits"
    assert "FITS" in output.err
    folder.journal("oom", 11, step=1, phase="forward", requested_bytes=1, message="CUDA out of memory.", where=None)
    save(folder.trace(exit_status=1), tmp_path / "oom.trace")
    assert main(["report", str(tmp_path / "oom.trace")]) == 3
    assert "OUT OF MEMORY" in capsys.readouterr().out


def test_ctrl_c_is_a_short_message_and_exit_code_130(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def interrupted(options: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    monkeypatch.setattr("foretell.cli.gpus.execute", interrupted)
    assert main(["gpus"]) == 130
    assert capsys.readouterr().err == "foretell: interrupted; all child processes have been stopped.\n"


def test_being_terminated_ends_the_child_as_ctrl_c_does(monkeypatch: Any, capsys: Any) -> None:
    def terminated(options: Any) -> int:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError

    monkeypatch.setattr("foretell.cli.gpus.execute", terminated)
    previous = signal.getsignal(signal.SIGTERM)
    assert main(["gpus"]) == 130
    assert signal.getsignal(signal.SIGTERM) is previous


@pytest.mark.parametrize(("advice", "code"), [(KeyboardInterrupt(), 130), (UnsupportedError("none"), 2), (None, 0)])
def test_an_estimate_that_was_shown_is_in_its_file_when_advice_is_interrupted_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advice: BaseException | None, code: int
) -> None:
    def advise(*_: Any, **__: Any) -> Any:
        if advice is not None:
            raise advice
        return Findings(reserved_bytes=0, advice=(), not_tried=())

    (tmp_path / "capture").mkdir()
    result = training_run(tmp_path / "capture").result()
    monkeypatch.setattr("foretell.api.run", lambda job, **_: api.Run(job=job, trace=from_capture(result)))
    monkeypatch.setattr("foretell.advice.advise", advise)
    (tmp_path / "train.py").write_text("")
    words = ["run", "--gpu", "rtx-3060", "--advise", "--json", str(tmp_path / "e.json"), str(tmp_path / "train.py")]
    assert main(words) == code
    document = json.loads((tmp_path / "e.json").read_text())
    assert (document["complete"], document["advice"]) == (True, None if advice else [])


def test_a_run_that_trains_on_the_cpu_is_hinted_at_once(capsys: Any) -> None:
    show = progress()
    early = Progress(seconds=9, num_steps=0, reserved_bytes=None, phase="backward", is_on_cpu=True)
    show(replace(early, is_on_cpu=False, seconds=11))
    show(early)
    assert "nothing on the GPU" not in capsys.readouterr().err
    for seconds in (10, 11, 30):
        show(replace(early, seconds=seconds))
    assert capsys.readouterr().err.count("has put nothing on the GPU. Does it need an option such as --device") == 1


@pytest.mark.parametrize(
    ("lines", "is_on_cpu"),
    [
        ([], False),
        ([("phase", {"phase": "backward"})], True),
        ([("cuda", {}), ("phase", {"phase": "backward"})], False),
        ([("step", {"index": 0, "devices": []})], True),
        ([("cuda", {}), ("step", {"index": 0, "devices": [device(0, 0, (0, 0))]})], True),
        ([("cuda", {}), ("step", {"index": 0, "devices": [device(0, 512, (512, 512))]})], False),
    ],
)
def test_training_without_memory_of_the_gpu_is_seen_in_the_journal(
    tmp_path: Path, lines: list[tuple[str, dict[str, Any]]], is_on_cpu: bool
) -> None:
    folder = CaptureFolder(tmp_path)
    for kind, values in lines:
        folder.journal(kind, **values)
    seen: list[Progress] = []
    Watch(tmp_path, on_progress=seen.append).tick(11)
    assert seen[0].is_on_cpu is is_on_cpu


def test_the_progress_tells_of_a_long_wait_until_the_rank_does_something_else(tmp_path: Path) -> None:
    folder, seen = CaptureFolder(tmp_path), list[Progress]()
    watch = Watch(tmp_path, on_progress=seen.append)
    folder.journal("rank_waits", text="rank 0 waits in ncclAllReduce at train.py:8 for rank 1", seconds=20.0)
    watch.tick(31)
    folder.journal("step", index=0, devices=[])
    watch.tick(41)
    assert [each.wait for each in seen] == ["rank 0 waits in ncclAllReduce at train.py:8 for rank 1", None]


def test_a_line_of_foretell_does_not_follow_half_a_line_of_the_script(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        assert fresh_line(log) == ""
        os.write(log.fileno(), b"Epoch 0:   7%|##")
        assert fresh_line(log) == "\n"
        os.write(log.fileno(), b"\n")
        assert fresh_line(log) == ""
    assert fresh_line(io.StringIO()) == ""


def test_on_a_terminal_a_line_of_blanks_goes_on_to_the_next_line_if_there_is_text() -> None:
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        with open(theirs, "w", closefd=False) as terminal:
            assert fresh_line(terminal) == " " * 30 + "\r"
    finally:
        os.close(ours)
        os.close(theirs)
