"""The contracts between foretell and the process it watches hold on both sides: journal, options, marks."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from foretell import gpus
from foretell.inside.options import Options
from foretell.jobs import CaptureOptions, Job
from foretell.protocol import journal, marks, options
from foretell.records import CATEGORIES
from foretell.runs.environment import child_environment
from foretell.trace.journal import _READERS
from foretell.trace.records import PHASES
from test_jobs import PROFILE

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "foretell"


# --- journal ----------------------------------------------------------------------------------------------------------


def written_lines() -> list[Any]:
    """(file, kind, the keys by name, whether there may be more) of each `journal.write("kind", key=...)`."""
    found = []
    for path in sorted([*SOURCE.glob("inside/**/*.py"), *SOURCE.glob("engines/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            is_write = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "write"
            if is_write and node.args and isinstance(node.args[0], ast.Constant) and node.keywords:
                names = {keyword.arg for keyword in node.keywords if keyword.arg}
                has_more = any(keyword.arg is None for keyword in node.keywords)
                found.append(pytest.param(node.args[0].value, names, has_more, id=f"{path.name}:{node.args[0].value}"))
    return found


@pytest.mark.parametrize(("kind", "names", "has_more"), written_lines())
def test_every_line_that_is_written_has_the_keys_of_its_kind(kind: str, names: set[str], has_more: bool) -> None:
    known = journal.KINDS[kind]
    assert names <= known.names
    assert has_more or known.required <= names


def test_every_kind_of_the_journal_is_written_somewhere() -> None:
    assert {each.values[0] for each in written_lines()} == set(journal.KINDS)


def test_the_trace_reads_every_kind_but_progress_and_what_is_for_advice_and_plans() -> None:
    of_another_process = {"rank_needed"}
    others = {"operators", "rank_waits", "survey", "features", "alternative", "loader"}
    assert set(journal.KINDS) - set(_READERS) == others | of_another_process
    assert set(_READERS) <= set(journal.KINDS)


def test_a_mistake_in_a_line_is_named() -> None:
    assert journal.mistake_in("phase", {"phase": "forward", "step": 0}) is None
    assert journal.mistake_in("alternative", {"name": "autocast"}) is None  # `by` is optional
    assert journal.mistake_in("phase", {"phase": "forward"}) == "phase: missing keys ['step'], unknown keys []"
    assert journal.mistake_in("phaze", {}) == "there is no kind 'phaze'"
    assert journal.mistake_in_types("phase", {"phase": "forward", "step": 0}) is None
    assert journal.mistake_in_types("phase", {"phase": "forward", "step": True}) is not None
    assert journal.mistake_in_types("oom", {"where": None}) is None


def test_half_a_line_at_the_end_of_a_journal_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal-1.jsonl"
    whole = [{"kind": "caveat", "time_us": 1, "text": "a"}, {"kind": "caveat", "time_us": 2, "text": "ü\u2028"}]
    text = "".join(json.dumps(line) + "\n" for line in whole)
    path.write_text(text + '{"kind": "step", "ind')
    assert journal.read_journal(path) == whole


def test_a_journal_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "journal-1.jsonl"
    path.write_text('{"kind": "caveat", "time_us": 1, "text": "a"}\n{"kind": "cav')
    reader = journal.JournalReader(path)
    assert [line["text"] for line in reader.read_new()] == ["a"]
    with path.open("a") as file:
        file.write('eat", "time_us": 2, "text": "b"}\n')
    assert [line["text"] for line in reader.read_new()] == ["b"]
    assert reader.read_new() == []


# --- options and environment ------------------------------------------------------------------------------------------


def test_the_watched_process_has_every_option_and_no_other() -> None:
    assert list(Options.__annotations__) == list(options.OPTIONS)


def test_options_have_the_same_defaults_on_both_sides() -> None:
    ours = CaptureOptions()
    shared = {field.name for field in fields(CaptureOptions)} & set(options.OPTIONS)
    assert {name: getattr(ours, name) for name in shared} == {n: options.OPTIONS[n].default for n in shared}
    assert set(options.OPTIONS) - shared == {"directory"}


def test_options_reach_the_watched_process_as_they_were_given() -> None:
    given = CaptureOptions(steps=5, isolation="none", assume="high", alternatives=("drop-last",))
    received = Options(json.loads(options.encode("/tmp/x", given)))
    assert (received.directory, received.steps, received.isolation) == ("/tmp/x", 5, "none")
    assert (received.assume, received.alternatives, received.guards) == ("high", ["drop-last"], True)


def test_an_option_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not options of a capture: \['stepz'\]"):
        Options({"directory": "/tmp/x", "stepz": 3})


def test_only_documented_variables_are_set_for_the_watched_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in options.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    job = Job(command=("train.py",), gpu=gpus.find("rtx-3060"), profile=PROFILE)
    given = child_environment(job, tmp_path)
    assert {name for name, value in given.items() if before.get(name) != value} <= set(options.VARIABLES)
    assert {"FORETELL_CAPTURE", "FORETELL_DEVICE", "FORETELL_WORKSPACES", "PYTHONPATH"} <= set(given)


# --- marks ------------------------------------------------------------------------------------------------------------


def test_marks_and_labels_use_the_words_of_the_trace() -> None:
    assert marks.PHASES == PHASES
    assert set(marks.LABELLED) < set(CATEGORIES)
