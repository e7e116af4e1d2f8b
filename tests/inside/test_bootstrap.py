"""The start of an interpreter: cheap, and never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import HANG_SECONDS

from .conftest import BOOTSTRAP


def start(code: str, *paths: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "FORETELL_CAPTURE"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [BOOTSTRAP, *paths]))
    return subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, capture_output=True, text=True,
        timeout=HANG_SECONDS,
    )  # fmt: skip


def options(folder: Path) -> str:
    return json.dumps({"directory": str(folder)})


def test_without_the_variable_nothing_is_loaded() -> None:
    process = start("import sys; print('foretell_child' in sys.modules, sys.meta_path[0])")
    assert process.stdout.startswith("False")


def test_no_heavy_module_is_imported_at_the_start(tmp_path: Path) -> None:
    code = "import sys; print([name for name in ('torch', 'numpy', 'dataclasses', 'inspect') if name in sys.modules])"
    assert start(code, FORETELL_CAPTURE=options(tmp_path)).stdout == "[]\n"


def test_the_hidden_sitecustomize_runs_with_and_without_a_capture(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the user\\'s own')")
    capture = tmp_path / "capture"
    capture.mkdir()
    assert start("pass", tmp_path).stdout == "the user's own\n"
    assert start("pass", tmp_path, FORETELL_CAPTURE=options(capture)).stdout == "the user's own\n"


def test_a_capture_that_cannot_start_says_so_and_the_script_runs() -> None:
    process = start("print('runs')", FORETELL_CAPTURE="{not json")
    assert (process.returncode, process.stdout) == (0, "runs\n")
    assert process.stderr.startswith("foretell: could not start recording: JSONDecodeError")
    assert process.stderr.count("\n") == 1


def test_only_the_first_process_writes_a_journal_for_nothing(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    assert start(code, FORETELL_CAPTURE=options(tmp_path)).returncode == 0
    (journal,) = tmp_path.glob("journal-*.jsonl")
    assert journal.name == f"journal-{(tmp_path / 'main').read_text()}.jsonl"
    assert [json.loads(line)["kind"] for line in journal.read_text().splitlines()] == ["process", "end"]


def test_a_full_disk_does_not_end_the_script(tmp_path: Path) -> None:
    full = (
        "import sys; module = sys.modules['foretell_child.inside.journal']\n"
        "def full(*_): raise OSError(28, 'No space left on device')\n"
        "module._write = full; print('runs')"
    )
    process = start(full, FORETELL_CAPTURE=options(tmp_path))
    assert (process.returncode, process.stdout) == (0, "runs\n")
    assert process.stderr.count("cannot write the journal any more") == 1


def test_a_forked_child_stays_out_of_its_parents_journal(tmp_path: Path) -> None:
    code = "import os; pid = os.fork(); os.waitpid(pid, 0) if pid else None; print('done')"
    assert start(code, FORETELL_CAPTURE=options(tmp_path)).stdout == "done\ndone\n"
    (journal,) = tmp_path.glob("journal-*.jsonl")
    assert [json.loads(line)["kind"] for line in journal.read_text().splitlines()] == ["process", "end"]
