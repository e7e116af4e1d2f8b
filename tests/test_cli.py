from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capture_folder import training_run
from foretell.cli import main
from foretell.cli.main import Parser
from foretell.cli.run import add_arguments, prepare
from foretell.trace import save

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def foretell(tmp_path: Path) -> Run:
    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "foretell", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, **options)

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
        (["run", "--steps", "some", "missing.py"], "--steps some"),
        (["run", "--context", "much", "missing.py"], "not a size"),
        (["run", "--engine", "tpu", "missing.py"], "invalid choice: 'tpu'"),
        (["run", "--engine", "virtual", "--execute", "missing.py"], "--execute works only with the CPU engine"),
        (["run", "--engine", "virtual", "--explain", "missing.py"], "--explain works only with the CPU engine"),
        (["run", "--trace", "no/such/folder/x", "missing.py"], "no such folder"),
        (["run", "torchrun", "x.py"], "not supported yet"),
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
