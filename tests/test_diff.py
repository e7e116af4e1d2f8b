"""`foretell diff`: what changed between two runs. Most tests build the two summaries by hand."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from capture_folder import training_run
from foretell.analysis.verdict import estimate_of
from foretell.cli import main
from foretell.diff import Held, Summary, compare, folded, grown_over, page, sentence, summary_of, text
from foretell.diff import json as diff_json
from foretell.diff.compare import Change, outlook, percent, signed
from foretell.records import OutsidePeak, StepPeak
from foretell.report import json as report_json
from foretell.trace import load, save
from foretell.units import GIB, MIB


def peaks(allocated: int, reserved: int) -> dict[str, int]:
    beside = {"library_bytes": 18 * MIB, "context_bytes": 160 * MIB}
    device = reserved + sum(beside.values())
    return {"allocated_bytes": allocated, "reserved_bytes": reserved, **beside, "device_bytes": device}


def block(size: int, module: str | None = "Net.layers.0", **changes: Any) -> Held:
    values: dict[str, Any] = {"category": "activation", "name": None, "operator": "aten.mm", "phase": "forward"}
    return Held(bytes=size, module=module, **{**values, **changes})


def summary(*blocks: Held, reserved: int | None = None, **changes: Any) -> Summary:
    """Of a run that held these at its peak."""
    allocated = sum(each.bytes for each in blocks)
    categories: dict[str, int] = {}
    modules: dict[str | None, int] = {}
    for each in blocks:
        categories[each.category] = categories.get(each.category, 0) + each.bytes
        modules[each.module] = modules.get(each.module, 0) + each.bytes
    values: dict[str, Any] = {
        "path": "run.trace", "verdict": "fits", "engine": "virtual", "gpu": "rtx-3060", "torch": "2.15.0",
        "cuda": "13.2", "command": ("/usr/bin/python", "train.py"),
        "peaks": peaks(allocated, allocated if reserved is None else reserved),
        "steps": (), "oom_step": None, "categories": categories, "modules": modules, "blocks": tuple(blocks),
    }  # fmt: skip
    return Summary(**{**values, **changes})


def document(**changes: Any) -> dict[str, Any]:
    """An estimate as written before it said who held the memory."""
    peak = {**peaks(100 * MIB, 120 * MIB), "device_low_bytes": 0, "device_high_bytes": GIB}
    return {
        "schema": "foretell.estimate/1", "engine": "virtual", "verdict": "fits",
        "gpu": {"name": "rtx-3060", "total_bytes": 12 * GIB}, "torch": "2.15.0", "cuda": "13.2", "peak": peak,
        "steps": [{"index": 0, "peak_allocated_bytes": 100 * MIB, "peak_reserved_bytes": 120 * MIB}],
        "oom": None, "command": ["python", "train.py"], **changes,
    }  # fmt: skip


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


# --- what changed -----------------------------------------------------------------------------------------------------


def test_nothing_changed() -> None:
    difference = compare(summary(block(MIB)), summary(block(MIB)))
    assert (difference.facts, difference.categories, difference.modules, difference.blocks) == ((), (), (), ())
    assert [change.bytes for change in difference.peaks] == [0] * 5
    assert sentence(difference) == "reserved and allocated are unchanged"


def test_the_largest_change_comes_first_whether_more_or_less() -> None:
    before = summary(block(10, "a"), block(100, "b"), block(5, "c"))
    after = summary(block(20, "a"), block(40, "b"), block(5, "c"), block(30, None))
    difference = compare(before, after)
    assert difference.modules is not None
    assert [(c.name, c.bytes) for c in difference.modules] == [("b", -60), ("(outside modules)", 30), ("a", 10)]


def test_changes_of_categories_modules_and_blocks_add_up_to_that_of_the_peak() -> None:
    before = summary(block(10), block(30, category="gradient"), block(7, "Net.head", name="weight"))
    after = summary(block(90), block(50), block(7, "Net.head", name="bias"))
    difference = compare(before, after)
    total = difference.peak("allocated_bytes").bytes
    assert total == 100
    for parts in (difference.categories, difference.modules, difference.blocks):
        assert parts is not None
        assert sum(change.bytes for change in parts) == total


def test_blocks_are_the_same_when_all_but_their_size_is() -> None:
    before = summary(block(10), block(10), block(10, phase="backward"))
    after = summary(block(12), block(10), block(10), block(10, phase="backward"))
    (change,) = compare(before, after).blocks or ()
    assert (change.before_count, change.after_count, change.bytes) == (2, 3, 12)


def test_facts_that_differ_are_told_but_not_where_python_lies() -> None:
    before = summary(command=("/a/bin/python", "train.py", "--batch size", "8"))
    after = summary(command=("/b/bin/python", "train.py"), gpu="a100", torch="2.6", verdict="oom", oom_step=2)
    facts = {fact.name: (fact.before, fact.after) for fact in compare(before, after).facts}
    assert facts == {
        "verdict": ("fits", "out of memory in step 2"),
        "card": ("rtx-3060", "a100"),
        "torch": ("2.15.0", "2.6"),
        "command": ("python train.py '--batch size' 8", "python train.py"),
    }
    assert compare(before, replace(before, command=("/c/python", *before.command[1:]))).facts == ()


def test_steps_are_compared_by_their_number() -> None:
    def steps(*reserved: int) -> tuple[StepPeak, ...]:
        return tuple(StepPeak(index=n, peak_allocated_bytes=1, peak_reserved_bytes=r) for n, r in enumerate(reserved))

    difference = compare(summary(steps=steps(10, 20, 30)), summary(steps=steps(11, 20, 70, 99)))
    assert [(change.row.place, change.reserved.bytes) for change in difference.steps] == [("step 2", 40), ("step 0", 1)]
    assert [fact.name for fact in difference.facts] == ["steps"]


def test_what_ran_outside_the_steps_is_compared_after_the_same_step_or_the_last() -> None:
    def run(num_steps: int, **evaluations: int) -> Summary:
        steps = tuple(StepPeak(index=n, peak_allocated_bytes=5, peak_reserved_bytes=5) for n in range(num_steps))
        outside = [
            OutsidePeak(kind="evaluation", after_step=int(n[1:]), peak_allocated_bytes=size, peak_reserved_bytes=9)
            for n, size in evaluations.items()
        ]
        before = OutsidePeak(kind="before", after_step=None, peak_allocated_bytes=num_steps, peak_reserved_bytes=1)
        return summary(steps=steps, outside_steps=(before, *outside))

    difference = compare(run(4, _1=10, _3=30), run(6, _1=11, _3=12, _5=50))
    assert difference.outside_steps is not None
    changes = [(each.row.place, each.allocated) for each in difference.outside_steps]
    assert [(place, change.before_bytes, change.after_bytes) for place, change in changes] == [
        ("evaluation after step 5", 30, 50), ("before training", 4, 6), ("evaluation after step 1", 10, 11),
    ]  # fmt: skip
    assert [(fact.name, fact.before, fact.after) for fact in difference.facts] == [
        ("steps", "4", "6"), ("evaluations", "2", "3"),
    ]  # fmt: skip
    told = json.loads(diff_json.render(difference))["outside_steps"][0]
    assert (told["kind"], told["after_step"], told["allocated_bytes"]["change"]) == ("evaluation", 5, 20)


def test_an_estimate_that_says_nothing_of_what_ran_outside_the_steps_is_compared_in_the_rest(tmp_path: Path) -> None:
    outside = [{"kind": "after", "after_step": 0, "peak_allocated_bytes": 1, "peak_reserved_bytes": 1}]
    old = written(tmp_path / "old.json", document())
    new = written(tmp_path / "new.json", document(outside_steps=outside))
    difference = compare(summary_of(old), summary_of(new))
    assert (difference.outside_steps, difference.facts) == (None, ())


def test_a_renamed_prefix_is_not_a_change() -> None:
    names = ("layers.0.mlp", "layers.1.mlp", "head", "norm")
    before = summary(*(block(100, f"Net.{name}") for name in names))
    after = summary(*(block(101, f"OptimizedModule._orig_mod.{name}") for name in names))
    difference = compare(before, after)
    assert difference.notes == ("modules below Net are compared with those below OptimizedModule._orig_mod (renamed)",)
    assert [change.bytes for change in difference.blocks or ()] == [1] * 4
    assert [change.bytes for change in difference.modules or ()] == [1] * 4


def test_other_modules_are_not_a_renaming() -> None:
    before = summary(*(block(100, f"Net.layers.{n}") for n in range(3)))
    assert compare(before, summary(*before.blocks or (), block(9, "Net.layers.3"))).notes == ()
    assert compare(before, summary(*(block(1, f"Other.stages.{n}.conv") for n in range(3)))).notes == ()


def test_layers_are_shown_as_one() -> None:
    before = summary(*(block(10, f"Net.layers.{n}.mlp") for n in range(3)), block(10, "Net.head"))
    after = summary(*(block(15, f"Net.layers.{n}.mlp") for n in range(3)), block(11, "Net.head"))
    difference = compare(before, after)
    shown = [(c.name, c.count, c.before_bytes, c.bytes) for c in folded(difference.modules or ())]
    assert shown == [("Net.layers.*.mlp", 3, 30, 15), ("Net.head", 1, 10, 1)]
    assert [(c.name, c.before_count) for c in folded(difference.blocks or ())] == [
        ("Net.layers.*.mlp", 3),
        ("Net.head", 1),
    ]


# --- the sentence -----------------------------------------------------------------------------------------------------


def test_the_sentence_says_how_much_and_whose() -> None:
    before = summary(*(block(100 * MIB, f"Net.layers.{n}.mlp") for n in range(8)), block(GIB, "Net.head"))
    after = summary(*(block(200 * MIB, f"Net.layers.{n}.mlp") for n in range(8)), block(GIB, "Net.head"))
    assert sentence(compare(before, after)) == "+800 MiB (+44 %) reserved, mostly activations of Net.layers.*"
    assert sentence(compare(after, before)) == "-800 MiB (-30 %) reserved, mostly activations of Net.layers.*"


def test_the_sentence_blames_the_cache_when_allocated_does_not_explain_it() -> None:
    difference = compare(summary(block(MIB), reserved=2 * MIB), summary(block(MIB), reserved=22 * MIB))
    assert sentence(difference) == "+20.0 MiB (+1000 %) reserved, mostly cached or fragmented memory"


def test_the_sentence_begins_with_a_verdict_that_turned() -> None:
    fits, oom = summary(block(MIB)), summary(block(2 * MIB), verdict="oom", oom_step=0)
    assert sentence(compare(fits, oom)).startswith("now runs out of memory: +1.0 MiB")
    assert sentence(compare(oom, fits)).startswith("now fits: -1.0 MiB")


def test_what_was_held_when_memory_ran_out_is_not_taken_for_a_saving() -> None:
    fits, oom = summary(block(2 * MIB)), summary(block(MIB), verdict="oom", oom_step=0)
    assert sentence(compare(fits, oom)) == "now runs out of memory"
    assert outlook(compare(fits, oom)) == 1
    assert sentence(compare(oom, fits)) == "now fits"
    assert outlook(compare(oom, fits)) == -1
    assert "<h1 class='more'>now runs out" in page.render(compare(fits, oom))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(0, 5, ("+5 B", "new")), (5, 0, ("-5 B", "gone")), (200, 203, ("+3 B", "+1.5 %")), (4, 3, ("-1 B", "-25 %"))],
)
def test_changes_in_words(before: int, after: int, words: tuple[str, str]) -> None:
    change = Change(name="x", before_bytes=before, after_bytes=after)
    assert (signed(change.bytes), percent(change)) == words


# --- missing details ------------------------------------------------------------------------------------------------


def test_an_estimate_that_does_not_say_who_held_the_memory_is_compared_in_the_rest(tmp_path: Path) -> None:
    old = summary_of(written(tmp_path / "old.json", document()))
    difference = compare(old, summary(block(110 * MIB), reserved=130 * MIB))
    assert difference.peak("reserved_bytes").bytes == 10 * MIB
    assert (difference.categories, difference.modules, difference.blocks) == (None, None, None)
    assert difference.notes == (
        f"{tmp_path / 'old.json'} has no categories, modules and blocks, so they are not compared",
    )


def test_what_a_cut_list_may_hide_is_not_a_change(tmp_path: Path) -> None:
    """Of 60 blocks of 10 MiB and one of 100 MiB, the estimate lists 50; 11 MiB each would be 60 new ones."""
    blocks = [{"bytes": 100 * MIB, "category": "gradient", "module": "Net.head"}]
    blocks += [{"bytes": 10 * MIB, "category": "activation", "module": f"Net.layers.{n}"} for n in range(49)]
    modules = [{"module": each["module"], "bytes": each["bytes"]} for each in blocks]
    peak = {**document()["peak"], "blocks": blocks, "by_module": modules, "num_blocks": 61}
    before = summary_of(written(tmp_path / "cut.json", document(peak=peak)))
    after = summary(*(block(11 * MIB, f"Net.layers.{n}") for n in range(60)))
    difference = compare(before, after)
    assert [change.name for change in difference.blocks or ()] == ["Net.head"]
    assert {change.bytes for change in difference.modules or ()} == {-100 * MIB, MIB}
    assert len(difference.modules or ()) == 1 + 49
    assert "modules of at most 10.0 MiB are listed only in part" in difference.notes


def test_a_list_that_is_whole_hides_nothing(tmp_path: Path) -> None:
    blocks = [{"bytes": 10, "category": "activation", "module": "Net"}] * 50
    whole = {**document()["peak"], "blocks": blocks, "num_blocks": 50}
    assert summary_of(written(tmp_path / "x.json", document(peak=whole))).blocks_floor_bytes == 0
    cut = {**whole, "num_blocks": 51}
    assert summary_of(written(tmp_path / "x.json", document(peak=cut))).blocks_floor_bytes == 10


def test_the_trace_and_the_estimate_of_a_run_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    save(training_run(tmp_path / "capture").trace(), tmp_path / "run.trace")
    (tmp_path / "run.json").write_text(report_json.render(estimate_of(load(tmp_path / "run.trace"))))
    of_trace, of_estimate = summary_of(tmp_path / "run.trace"), summary_of(tmp_path / "run.json")
    assert of_trace.blocks is not None
    assert replace(of_trace, path="") == replace(of_estimate, path="")
    assert main(["diff", str(tmp_path / "run.trace"), str(tmp_path / "run.json"), "--fail-over", "0"]) == 0


# --- --fail-over ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "is_over"),
    [(10 * MIB, False), (10 * MIB - 1, True), (0, True), (0.1, False), (0.0999, True)],
)
def test_growth_is_over_the_limit_only_when_it_is_more(limit: int | float, is_over: bool) -> None:
    difference = compare(summary(reserved=100 * MIB), summary(reserved=110 * MIB))
    assert (grown_over(difference, limit) is not None) == is_over


def test_growth_of_device_alone_counts_and_less_never_does() -> None:
    before, after = summary(), summary()
    after.peaks["device_bytes"] += 5
    assert grown_over(compare(before, after), 4) == "device memory grew by 5 B, more than 4 B"
    assert grown_over(compare(after, before), 0) is None


def test_a_run_that_no_longer_fits_is_over_any_limit() -> None:
    fits, oom = summary(reserved=GIB), summary(reserved=MIB, verdict="oom")
    assert grown_over(compare(fits, oom), 10 * GIB) == "now runs out of memory"
    assert grown_over(compare(oom, oom), 0) is None


@pytest.mark.parametrize(
    ("options", "code"),
    [([], 0), (["--fail-over", "20MiB"], 0), (["--fail-over", "5MiB"], 3), (["--fail-over", "5%"], 3)],
)
def test_the_exit_code_is_3_only_when_asked_for(options: list[str], code: int, tmp_path: Path, capsys: Any) -> None:
    before = written(tmp_path / "a.json", document())
    after = written(tmp_path / "b.json", document(peak=peaks(100 * MIB, 130 * MIB)))
    assert main(["diff", str(before), str(after), *options]) == code
    assert ("over the limit" in capsys.readouterr().out) == (code == 3)


@pytest.mark.parametrize("limit", ["much", "-5%", "%", "5 percent"])
def test_a_limit_that_is_none_is_said(limit: str, tmp_path: Path, capsys: Any) -> None:
    path = str(written(tmp_path / "a.json", document()))
    assert main(["diff", path, path, f"--fail-over={limit}"]) == 2
    assert "not a size or a percentage" in capsys.readouterr().err


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is neither a trace nor JSON"),
        (b"\x89PNG\r\n", "is neither a trace nor JSON"),
        (b'{"schema": "foretell.est', "is neither a trace nor JSON, or is truncated"),
        (b"[1, 2]", "is JSON, but not written by foretell"),
        (b"{}", "is JSON, but not written by foretell"),
        (b'{"schema": "foretell.what-if/1"}', "has the format 'foretell.what-if/1'"),
        (b'{"schema": "foretell.estimate/1"}', "is a damaged estimate: estimate needs verdict"),
        (json.dumps(document(peak=7)).encode(), "is a damaged estimate"),
        (json.dumps(document(torch=None)).encode(), "None is not a string"),
        (json.dumps(document(peak=peaks(-1, 1))).encode(), "-1 is not a number of bytes"),
        (b"PK\x03\x04 cut off", "is not a trace, or is truncated"),
    ],
)
def test_a_file_that_cannot_be_compared_is_named(content: bytes, message: str, tmp_path: Path, capsys: Any) -> None:
    good, bad = written(tmp_path / "good.json", document()), tmp_path / "bad"
    bad.write_bytes(content)
    for words in ([good, bad], [bad, good]):
        assert main(["diff", *map(str, words)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"foretell: {bad} " in shown.err
        assert message in shown.err


def test_missing_files_folders_and_targets_are_said(tmp_path: Path, capsys: Any) -> None:
    good = str(written(tmp_path / "good.json", document()))
    for words, message in (
        ([good, str(tmp_path / "none")], f"no such file: {tmp_path / 'none'}. Give a trace (`foretell run --trace"),
        ([good, str(tmp_path)], f"cannot read {tmp_path}: Is a directory"),
        ([good, good, "--html", str(tmp_path / "no" / "x")], "no such folder"),
        ([good, good, "--json", str(tmp_path)], "is a folder"),
        ([good, good, "--html", good], "this file is an input"),
        ([good], "the following arguments are required: B"),
    ):
        assert main(["diff", *words]) == 2
        assert message in capsys.readouterr().err


def test_the_trace_of_a_script_that_failed_is_exit_code_2(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "capture").mkdir()
    save(training_run(tmp_path / "capture").trace(exit_status=1), tmp_path / "failed.trace")
    assert main(["diff", str(tmp_path / "failed.trace"), str(tmp_path / "failed.trace")]) == 2
    assert "failed.trace: the run is incomplete (the script itself ended with exit" in capsys.readouterr().err
    (tmp_path / "failed.json").write_text(report_json.render(estimate_of(load(tmp_path / "failed.trace"))))
    assert main(["diff", str(tmp_path / "failed.json"), str(tmp_path / "failed.json")]) == 2
    assert "failed.json: the run is incomplete (the script itself ended with exit" in capsys.readouterr().err


# --- forms ------------------------------------------------------------------------------------------------------------

SHARP = "<script>alert('&')</script>"


def sharp() -> tuple[Summary, Summary]:
    """Names with all that HTML and rich would take for their own."""
    before = summary(block(MIB, SHARP, operator="[red]op[/red]", name=None), path=SHARP, gpu=SHARP)
    after = summary(block(3 * MIB, SHARP, operator="[red]op[/red]", name=None), command=(SHARP,), torch=SHARP)
    return before, after


def test_the_page_escapes_all_names_and_needs_nothing_else() -> None:
    shown = page.render(compare(*sharp()))
    assert "<script" not in shown
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in shown
    assert "http" not in shown
    assert "+2.0 MiB" in shown


def test_the_text_shows_names_as_they_are() -> None:
    output = io.StringIO()
    text.render(compare(*sharp()), Console(file=output, width=200))
    assert "[red]op[/red]" in output.getvalue()
    assert f"activation of {SHARP}" in output.getvalue()


@pytest.mark.parametrize("width", [60, 80, 110])
def test_long_names_go_on_after_a_dot_and_no_number_is_cut(width: int) -> None:
    module = "LlamaForCausalLM.model.layers.0.mlp.gate_proj"
    difference = compare(summary(block(800 * MIB, module)), summary(block(1900 * MIB, module)))
    output = io.StringIO()
    text.render(difference, Console(file=output, width=width))
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert {"LlamaForCausalLM", "layers", "gate_proj"} <= set(output.getvalue().replace(".", " ").split())
    assert any(re.fullmatch(r"  peak reserved .* \+1\.07 GiB  \+138 %", line) for line in lines)
    assert any(re.fullmatch(r"  LlamaForCausalLM\..* \+1\.07 GiB( +\+138 %)?", line) for line in lines)


def test_of_many_rows_the_largest_are_shown_and_the_rest_counted() -> None:
    before = summary(*(block(1, f"m{chr(97 + n)}") for n in range(26)))
    after = summary(*(block(2 + n, f"m{chr(97 + n)}") for n in range(26)))
    output = io.StringIO()
    text.render(compare(before, after), Console(file=output, width=80))
    assert output.getvalue().count("and 14 more (all are in --json and --html)") == 2
    assert "mz" in output.getvalue()
    assert all(f"m{chr(97 + n)}" in page.render(compare(before, after)) for n in range(26))


def test_the_json_holds_all_and_says_its_schema(tmp_path: Path, capsys: Any) -> None:
    difference = compare(summary(block(MIB), block(5, None)), summary(block(3 * MIB), path="b"))
    found = json.loads(diff_json.render(difference))
    assert found["schema"] == "foretell.diff/1"
    assert found["peak"]["reserved_bytes"] == {"before": MIB + 5, "after": 3 * MIB, "change": 2 * MIB - 5}
    assert [each["module"] for each in found["by_module"]] == ["Net.layers.0", None]
    assert found["blocks"][0]["count"] == {"before": 1, "after": 1, "change": 0}
    assert found["after"]["path"] == "b"

    path = str(written(tmp_path / "a.json", document()))
    assert main(["diff", path, path, "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["by_category"] is None
    assert "peak reserved" in shown.err


def test_files_are_written(tmp_path: Path) -> None:
    path = str(written(tmp_path / "a.json", document()))
    assert main(["diff", path, path, "--json", str(tmp_path / "d.json"), "--html", str(tmp_path / "d.html")]) == 0
    assert json.loads((tmp_path / "d.json").read_text())["summary"] == "reserved and allocated are unchanged"
    assert (tmp_path / "d.html").read_text().startswith("<!doctype html>")
