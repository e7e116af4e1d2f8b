"""The table of `make real-scripts` (benchmarks/real_scripts), and the rules by which it judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.real_scripts import data, report
from benchmarks.real_scripts.run import STAND_INS, said_bytes, words_of
from benchmarks.real_scripts.script import Number, Reason, Result, Script, problem
from benchmarks.real_scripts.table import SCRIPTS

from warm_runs import WarmRuns

RAN = Result(
    name="x", exit_code=0, seconds=9.0, verdict="fits", num_steps=4, allocated_bytes=1 << 20, reserved_bytes=2 << 20,
    device_bytes=170 << 20,
)  # fmt: skip
FAILED = Result(name="x", exit_code=2, seconds=1.0, message="torchrun is not supported")


def script(expected: Number | Reason) -> Script:
    return Script(name="x", origin="x/y", command="mnist.py", expected=expected)


def test_names_are_unique_and_data_can_be_made() -> None:
    names = [each.name for each in SCRIPTS]
    assert len(set(names)) == len(names)
    assert {kind for each in SCRIPTS for kind in each.data} == set(data.MAKERS)


def test_every_stand_in_is_in_the_table() -> None:
    words = {Path(word) for each in SCRIPTS for word in words_of(each.command)}
    assert {path for path in words if path.suffix == ".py"} == set(STAND_INS.glob("*.py"))


@pytest.mark.parametrize(
    ("expected", "result", "wrong"),
    [
        (Number(), RAN, None),
        (Number(), replace(RAN, said_bytes=1 << 20), None),
        (Number(), replace(RAN, said_bytes=3 << 20), "but the script says 3145728"),
        (Number(), replace(RAN, verdict="oom", exit_code=3), "exit code 3 instead of 0"),
        (Number(verdict="oom", exit_code=3), replace(RAN, verdict="oom", exit_code=3, needed_bytes=1 << 30), None),
        (Number(verdict="oom", exit_code=3), replace(RAN, verdict="oom", exit_code=3), "not how much it needs"),
        (Number(), replace(RAN, ended_by="the time limit"), "incomplete: the time limit"),
        (Number(is_complete=False), replace(RAN, ended_by="the time limit"), None),
        (Number(is_complete=False), RAN, "complete, though it cannot be"),
        (Number(), FAILED, "exit code 2 instead of 0"),
        (Number(exit_code=1), replace(FAILED, exit_code=1), "no number instead of fits"),
        (Number(exit_code=1), replace(RAN, exit_code=1), None),
        (Number(), replace(RAN, changed_files=("out/tokenizer.json",)), "changed files: out/tokenizer.json"),
        (Reason(words="torchrun"), FAILED, None),
        (Reason(words="no GPU"), FAILED, "the reason is not"),
        (Reason(words="torchrun"), replace(RAN, exit_code=2), "a number (fits) where none can be known"),
    ],
)
def test_an_answer_is_wrong_unless_number_reason_and_exit_code_are_as_expected(
    expected: Number | Reason, result: Result, wrong: str | None
) -> None:
    found = problem(script(expected), result)
    assert found is None if wrong is None else found is not None and wrong in found


def test_only_the_table_of_the_document_is_replaced(tmp_path: Path) -> None:
    document = tmp_path / "real-scripts.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        report.write([script(Number())], {"x": RAN}, document)
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| x | x/y (stand-in) | fits | 0 | 4 | 9 | 1.0 MiB | 2.0 MiB | 170 MiB |  |" in text
    assert "Commands: 1; a number: 1; a reason why there is none: 0; wrong: 0." in text


def test_rows_of_scripts_that_did_not_run_stay_in_the_document(tmp_path: Path) -> None:
    document = tmp_path / "real-scripts.md"
    document.write_text(f"{report.BEGIN}\n{report.END}\n")
    both = [script(Number()), replace(script(Reason(words="torchrun")), name="z")]
    report.write(both, {"x": RAN, "z": FAILED}, document)
    first = document.read_text()
    report.write(both, {"x": replace(RAN, num_steps=5)}, document)
    assert document.read_text() == first.replace("| 0 | 4 |", "| 0 | 5 |")
    assert "Commands: 2; a number: 1; a reason why there is none: 1; wrong: 0." in first


def test_reason_in_the_document_is_one_sentence_without_folders(tmp_path: Path) -> None:
    document = tmp_path / "real-scripts.md"
    document.write_text(f"{report.BEGIN}\n{report.END}\n")
    failed = replace(FAILED, message="it failed at /home/me/train.py:7: torchrun. Run a single process")
    report.write([script(Reason(words="torchrun"))], {"x": failed}, document)
    assert "| no number | 2 |  | 1 |  |  |  | it failed at train.py:7: torchrun |" in document.read_text()


QUICK = ("mnist", "mnist-rnn", "vae", "siamese-network", "super-resolution")


@pytest.mark.parametrize("name", QUICK)
def test_quick_stand_in_gives_the_number_it_says_itself(name: str, warm_runs: WarmRuns, tmp_path: Path) -> None:
    chosen = next(each for each in SCRIPTS if each.name == name)
    for kind in chosen.data:
        data.ensure(kind, tmp_path)
    run = warm_runs.run(*words_of(chosen.command), cwd=tmp_path, steps="auto")
    assert run.code == 0, run.tail()
    assert said_bytes(run.stdout.encode()) == run.peak["allocated_bytes"]
