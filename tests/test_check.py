"""`foretell check`: rules, baselines, Markdown. Most tests judge an estimate built by hand; nothing runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretell
from capture_folder import training_run
from foretell import api, gpus
from foretell.cli import main
from foretell.diff import Summary
from foretell.diff.summary import summary_of_run
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.plan import check_markdown
from foretell.plan.check import MEASURES, Check, Gate, judge, program_of, size_of
from foretell.records import EndedBy, Estimate, Need, OutOfMemory, PeakMemory, Together
from foretell.report.markdown import code, prose
from foretell.trace import from_capture, load
from foretell.units import GIB, MIB, parse_growth
from report_data import estimate_for, transformer

A100 = "a100-80gb"
OOM = OutOfMemory(step=1, phase="backward", requested_bytes=GIB, message="CUDA out of memory.", where="train.py:7")


def estimate(reserved: int = 2 * GIB, **changes: Any) -> Estimate:
    """Of a job with 500 MiB besides what PyTorch reserves, and a request of 1 GiB more than that."""
    device = reserved + 500 * MIB
    peak = PeakMemory(
        allocated_bytes=reserved // 2, reserved_bytes=reserved, library_bytes=20 * MIB, context_bytes=480 * MIB,
        device_low_bytes=device, device_high_bytes=device + MIB, request_bytes=device + GIB,
    )  # fmt: skip
    values: dict[str, Any] = {
        "engine": "virtual", "verdict": "fits", "gpu": gpus.find(A100), "torch_version": "2.15.0",
        "cuda_version": "13.2", "peak": peak, "peak_step": 0, "steps": (), "oom": None, "phases_seen": (),
        "caveats": (), "redirected_writes": (), "not_sent": (),
        "command": ("/usr/bin/python", "train.py", "--batch-size", "8"),
        "foretell_version": foretell.__version__,
    }  # fmt: skip
    return Estimate(**{**values, **changes})


def baseline(reserved: int = 2 * GIB, **changes: Any) -> Summary:
    return summary_of_run("main.trace", estimate(reserved, **changes))


def verdict(reserved: int = 2 * GIB, **gate: Any) -> str:
    return judge(estimate(reserved), Gate(**gate)).verdict


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "found"),
    [("device", 2 * GIB + 500 * MIB), ("request", 3 * GIB + 500 * MIB), ("reserved", 2 * GIB), ("allocated", GIB)],
)
def test_a_limit_is_exceeded_by_one_byte_more(of: Any, found: int) -> None:
    assert verdict(limit=str(found), of=of) == "within"
    assert verdict(limit=str(found - 1), of=of) == "over"
    (_, rule) = judge(estimate(), Gate(limit=str(found - 1), of=of)).rules
    assert (rule.kind, rule.of, rule.allowed_bytes, rule.found_bytes) == ("limit", of, found - 1, found)


@pytest.mark.parametrize(
    ("max_growth", "grown", "expected"),
    [
        ("10%", 250 * MIB, "within"), ("10%", 255 * MIB, "over"), ("0%", 0, "within"), ("0", 1, "over"),
        ("100MiB", 100 * MIB, "within"), ("100MiB", 100 * MIB + 1, "over"), ("0%", -GIB, "within"),
    ],
)  # fmt: skip
def test_growth_over_the_baseline(max_growth: str, grown: int, expected: str) -> None:
    assert verdict(2 * GIB + grown, max_growth=max_growth, baseline=baseline()) == expected


def test_growth_is_of_the_measure_that_was_asked_for() -> None:
    found = judge(estimate(3 * GIB), Gate(of="allocated", max_growth="50%", baseline=baseline()))
    assert found.rules[-1].found_bytes == found.rules[-1].allowed_bytes == 512 * MIB
    assert found.verdict == "within"


def test_any_broken_rule_is_over() -> None:
    gate = Gate(limit="1GiB", max_growth="1%", baseline=baseline())
    assert [rule.is_kept for rule in judge(estimate(), gate).rules] == [True, False, True]
    assert judge(estimate(), gate).verdict == "over"


def test_the_request_must_fit_on_the_card_only_if_the_limits_are_about_it() -> None:
    tight = estimate(gpus.find(A100).total_bytes - GIB)
    assert judge(tight, Gate()).verdict == "within"
    found = judge(tight, Gate(of="request"))
    assert (found.verdict, found.rules[0].kind, found.rules[0].of) == ("over", "gpu", "request")


def test_out_of_memory_is_not_within_any_limit_and_its_need_is_what_counts() -> None:
    ran_out = estimate(verdict="oom", oom=OOM)
    found = judge(ran_out, Gate(limit="60GiB"))
    assert (found.verdict, found.rules[1].found_bytes) == ("oom", None)
    need = Need(device_bytes=90 * GIB, reserved_bytes=89 * GIB, request_bytes=91 * GIB, smallest_gpus=("h200",))
    found = judge(replace(ran_out, need=need), Gate(limit="95GiB", max_growth="200%", baseline=baseline()))
    assert (found.verdict, found.rules[1].is_kept) == ("oom", True)
    assert found.rules[2].found_bytes == 90 * GIB - (2 * GIB + 500 * MIB)


def test_all_processes_count() -> None:
    together = Together(num_processes=3, device_bytes=9 * GIB, reserved_bytes=6 * GIB)
    several = estimate(together=together)
    assert [size_of(several, of) for of in MEASURES[:3]] == [9 * GIB, 10 * GIB, 6 * GIB]
    assert "largest of 3 processes" in judge(several, Gate(baseline=baseline())).caveats[-1]


def test_an_incomplete_run_may_be_over_but_is_not_within() -> None:
    stopped = estimate(ended_by=EndedBy(kind="time_limit", message="stopped"))
    assert judge(stopped, Gate()).verdict == "incomplete"
    assert judge(stopped, Gate(limit="1GiB")).verdict == "over"
    assert judge(estimate(ended_by=EndedBy(kind="early_end", message="failed to save")), Gate()).verdict == "within"


# --- baselines that cannot be compared --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"foretell_version": "0.0.1"}, "was written by foretell 0.0.1, this is"),
        ({"foretell_version": None}, "did not note its version"),
        ({"gpu": gpus.find("rtx-3060")}, "is for rtx-3060, not for a100-80gb. Omit --gpu"),
        ({"verdict": "oom", "oom": OOM}, "ran out of memory"),
        ({"engine": "cpu"}, "was estimated by the cpu engine, this run by the virtual engine"),
        ({"command": ("python", "evaluate.py")}, "is of another program: evaluate.py, not train.py"),
    ],
)
def test_growth_over_a_baseline_that_says_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    before = baseline(**changes)

    def judged(**gate: Any) -> Check:
        gate_of = Gate(baseline=before, **gate)
        gate_of.refuse_baseline(gpus.find(A100))
        return judge(estimate(), gate_of)

    with pytest.raises(UnsupportedError, match=re.escape(message)):
        judged(max_growth="2%")
    assert judged(limit="22GiB").difference is not None  # a comparison alone, with a caveat


def test_a_baseline_without_the_measure_is_refused() -> None:
    before = baseline()
    del before.peaks["request_bytes"]
    with pytest.raises(UnsupportedError, match="has no request memory"):
        Gate(of="request", max_growth="2%", baseline=before).refuse_baseline(gpus.find(A100))


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({"torch_version": "2.6.0"}, "part of the difference may come from torch: 2.6.0 before, 2.15.0 now"),
        ({"command": ("/opt/python3", "train.py")}, "the command has changed: python3 train.py before"),
        ({"gpu": gpus.find("rtx-3060")}, "may come from card: rtx-3060 before, a100-80gb now"),
    ],
)
def test_what_else_may_be_a_reason_is_a_caveat(changes: dict[str, Any], caveat: str) -> None:
    (found,) = judge(estimate(), Gate(baseline=baseline(**changes))).caveats
    assert caveat in found
    assert judge(estimate(), Gate(baseline=baseline())).caveats == ()


def test_another_context_is_a_caveat() -> None:
    before = baseline()
    before.peaks["context_bytes"] = 300 * MIB
    (caveat,) = judge(estimate(), Gate(baseline=before)).caveats
    assert caveat == "the CUDA context is 480 MiB, in the baseline 300 MiB (--context, --profile)"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["/opt/bin/python3.12", "-u", "src/train.py", "--x"], "train.py"),
        (["python", "-m", "my.train", "--x"], "-m my.train"),
        (["/usr/bin/accelerate", "launch", "x.py"], "accelerate"),
        (["train"], "train"),
        (["python"], ""),
        ([], ""),
    ],
)
def test_the_program_of_a_command(command: list[str], program: str) -> None:
    assert program_of(command) == program


@pytest.mark.parametrize("text", ["", "%", "-1%", "1 percent", "9" * 400 + "%", "nan%", "1e3%", "9" * 400])
def test_a_growth_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size or a percentage"):
        parse_growth(text)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with train.py, whose run is the one of `training_run`; nothing is started."""
    (tmp_path / "capture").mkdir()
    captured = training_run(tmp_path / "capture")
    (tmp_path / "train.py").touch()

    def run(job: Any, **_: Any) -> api.Run:
        return api.Run(job=job, trace=from_capture(captured.result(gpu=job.gpu)))

    monkeypatch.setattr(api, "run", run)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*words: str) -> int:
    return main(["check", "--quiet", *words, "train.py"])


def test_exit_codes_and_files(in_folder: Path, capsys: Any) -> None:
    assert check("--gpu", "rtx-3060", "--write-baseline", "main.trace") == 0
    assert check("--gpu", "rtx-3060", "--write-baseline", "main.json") == 0
    capsys.readouterr()
    for name in ("main.trace", "main.json"):
        words = ["--baseline", name, "--max-growth", "0", "--json", "check.json", "--markdown", "check.md"]
        assert check(*words) == 0
        document = json.loads((in_folder / "check.json").read_text())
        assert (document["schema"], document["verdict"]) == ("foretell.check/1", "within")
        assert [rule["rule"] for rule in document["rules"]] == ["gpu", "growth"]
        assert document["rules"][0] | {"found_bytes": 0} == {
            "rule": "gpu", "given": "rtx-3060", "of": "device", "allowed_bytes": 12622168064, "found_bytes": 0,
            "kept": True,
        }  # fmt: skip
        assert document["estimate"]["schema"] == "foretell.estimate/1"
        assert document["difference"]["schema"] == "foretell.diff/1"
        assert (in_folder / "check.md").read_text().startswith("### ✅ GPU memory: within limits, 164 MiB on rtx-3060")
    assert check("--gpu", "rtx-3060", "--limit", "100MiB") == 3
    assert "over the limit: device 164 MiB, 100 MiB allowed" in " ".join(capsys.readouterr().out.split())


def test_without_a_gpu_that_of_the_baseline_is_used(in_folder: Path, capsys: Any) -> None:
    assert check("--gpu", "rtx-4090", "--write-baseline", "main.trace") == 0
    assert main(["check", "--baseline", "main.trace", "--max-growth", "1%", "--json", "-", "train.py"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out[shown.out.index("{") :])["estimate"]["gpu"]["name"] == "rtx-4090"
    assert "no --gpu given; using that of the baseline: rtx-4090" in shown.err


def test_standard_output_carries_the_json_or_the_markdown_alone(in_folder: Path, capsys: Any) -> None:
    assert check("--limit", "1GiB", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "within"
    assert check("--limit", "1GiB", "--markdown", "-") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("### ✅")
    assert "within limits" in shown.err


def test_the_summary_of_a_github_job_is_appended_to(in_folder: Path, monkeypatch: Any, capsys: Any) -> None:
    summary = in_folder / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert check("--limit", "1GiB", "--github") == 0
    assert summary.read_text().startswith("before\n### ✅ GPU memory: within limits")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(in_folder / "no" / "such"))
    assert check("--limit", "1GiB", "--github") == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_failure_is_in_the_markdown_as_well(in_folder: Path, monkeypatch: Any, capsys: Any) -> None:
    def fails(job: Any, **_: Any) -> api.Run:
        raise ScriptError("the script itself failed at train.py:3: ValueError: <b>no</b>")

    monkeypatch.setattr(api, "run", fails)
    assert main(["check", "--limit", "1GiB", "--markdown", "-", "train.py", "--api-key", "hunter2"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("### ❌ GPU memory not checked: the script itself failed\n\n`train.py --api-key '***'`\n")
    assert r"ValueError: \<b>no\</b>" in shown


def test_a_run_that_is_no_baseline_is_not_written(in_folder: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = in_folder / "capture"
    result = training_run(folder).journal("oom", 11, **{**vars_of(OOM), "is_together": None}).result(exit_status=1)
    monkeypatch.setattr(api, "run", lambda job, **_: api.Run(job=job, trace=from_capture(result)))
    monkeypatch.setattr(api, "follow_up", lambda run, **_: run)
    assert check("--gpu", "rtx-3060", "--write-baseline", "main.trace") == 3
    assert "main.trace was not written: a run that ran out of memory is no baseline" in capsys.readouterr().err
    assert not (in_folder / "main.trace").exists()


def vars_of(oom: OutOfMemory) -> dict[str, Any]:
    return {name: getattr(oom, name) for name in ("step", "phase", "requested_bytes", "message", "where")}


def test_from_python(in_folder: Path) -> None:
    found = foretell.check(["train.py"], gpu="rtx-3060", write_baseline="main.trace")
    assert isinstance(found, foretell.Check)
    assert load(Path("main.trace")).gpu.name == "rtx-3060"
    found = foretell.check(["train.py"], limit="1GiB", baseline="main.trace", max_growth=0)
    assert str(found).splitlines() == [
        "within limits, 164 MiB on rtx-3060",
        "  ok    fits on rtx-3060: device 164 MiB of 11.76 GiB",
        "  ok    device 164 MiB, 1.00 GiB allowed",
        "  ok    device did not grow, 0 B allowed",
    ]
    with pytest.raises(UsageError, match="nothing to check"):
        foretell.check(["train.py"])
    with pytest.raises(UsageError, match="no/such/x"):
        foretell.check(["train.py"], write_baseline="no/such/x")
    with pytest.raises(UsageError, match=r"must be one of device, request, reserved, allocated"):
        foretell.check(["train.py"], limit=1, of="cuda")  # type: ignore[arg-type]


# --- Markdown ---------------------------------------------------------------------------------------------------------

HOSTILE = "@torvalds `|` \\| <img src=x> #1 https://evil.example [x](y) **b** $x$ www.evil.example\n- item \x1b[2J"


def test_what_others_chose_is_neither_markup_nor_a_mention() -> None:
    shown = code(HOSTILE, most=500)
    assert re.fullmatch(r"<code>(\w|&#\d+;)+</code>", shown)
    assert code("GPT2.blocks.*.mlp_<x>") == "`GPT2.blocks.*.mlp_<x>`"
    words = prose(HOSTILE)
    assert "\n" not in words
    assert "\x1b" not in words
    assert re.search(r"(?<!\\)[`*|<$\[]", words) is None
    for linked in ("@torvalds", "#1", "://", "www."):
        assert linked not in words
    assert prose("1. x") == r"1\. x"
    assert prose("- x") == r"\- x"
    assert prose("a & b") == "a &amp; b"


def test_what_is_too_long_loses_its_middle() -> None:
    assert code("abcdefghij" * 10, most=13) == "`abcde...fghij`"


def hostile_estimate() -> Estimate:
    whole = estimate_for(transformer())
    assert whole.attribution is not None
    blocks = [replace(block, module=f"{HOSTILE * 50}.{n % 40}x", where=f"/x/{HOSTILE * 50}.py:{n}")
              for n, block in enumerate(whole.attribution.blocks)]  # fmt: skip
    return replace(
        whole, attribution=replace(whole.attribution, blocks=blocks), caveats=(HOSTILE * 100,) * 100,
        command=("python", *[HOSTILE * 100] * 10), foretell_version=foretell.__version__,
    )  # fmt: skip


def test_a_comment_is_never_too_long_for_github() -> None:
    large = hostile_estimate()
    before = summary_of_run(HOSTILE * 100, estimate())
    assert len(judge(large, Gate()).to_markdown()) < 40_000
    assert len(judge(large, Gate(baseline=before, limit="1GiB")).to_markdown()) < 40_000
    assert len(check_markdown.render_failure(ScriptError(HOSTILE * 1000), large.command)) < 40_000


@pytest.mark.parametrize("is_compared", [False, True])
def test_hostile_strings_are_inert_when_rendered(is_compared: bool) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    gate = Gate(baseline=summary_of_run(HOSTILE, estimate())) if is_compared else Gate()
    text = judge(hostile_estimate(), gate).to_markdown()
    html = markdown_it.MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)
    found = set(re.findall(r"<(\w+)", html))
    assert found <= {
        "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary", "sub",
        "strong",
    }  # fmt: skip
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    assert {len(re.findall("<t[dh]", row)) for row in rows} == ({5} if is_compared else {4, 5})


def test_modules_are_compared_where_a_baseline_lists_only_its_largest_blocks() -> None:
    """Of blocks of 12 MiB that are not listed, those of 20 MiB after the change would be missing."""
    after = estimate_for(transformer())
    before = summary_of_run("main.json", after)
    assert before.modules is not None
    assert before.blocks is not None
    grown = "LlamaForCausalLM.model.layers.0.mlp.down_proj"
    before.modules[grown] -= 40 * MIB
    cut = replace(before, blocks=before.blocks[:50], blocks_floor_bytes=before.blocks[49].bytes)
    shown = judge(after, Gate(baseline=cut)).to_markdown()
    (row,) = re.findall(r"^\| \+.*$", shown, re.MULTILINE)
    assert row.startswith("| +40.0 MiB | ")
    assert row.endswith(f"`{grown}` | `train.py:64` |")
    assert "a trace as baseline shows small changes as well" in shown
