from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from capture_folder import training_run
from foretell.analysis.verdict import estimate_of
from foretell.records import Estimate, OutOfMemory, OutsidePeak, PeakMemory, RankEstimate, StepPeak, World
from foretell.report import json as json_report
from foretell.report import text
from foretell.report.dotted import Dotted, shared_prefix, shortened
from foretell.rules.capacity import LONGEST_TRAINING, capacity_of
from foretell.units import GIB, MIB
from report_data import LEAKS, transformer


@pytest.fixture
def fits(tmp_path: Path) -> Estimate:
    estimate = estimate_of(training_run(tmp_path).trace())
    peak = replace(
        estimate.peak,
        allocated_bytes=4 * GIB,
        reserved_bytes=5 * GIB,
        device_low_bytes=5 * GIB,
        device_high_bytes=7 * GIB,
        request_bytes=8 * GIB,
    )
    return replace(estimate, peak=peak, library_names=("cuBLAS",))


@pytest.fixture
def runs_out(fits: Estimate) -> Estimate:
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has [1] free. See documentation for Memory Management"
    )
    oom = OutOfMemory(step=1, phase="backward", requested_bytes=2 * GIB, message=message, where="/job/train.py:57")
    return replace(fits, verdict="oom", oom=oom)


def shown(estimate: Estimate, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    text.render(estimate, console)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_keeps_to_the_width_of_the_terminal(fits: Estimate, runs_out: Estimate, width: int) -> None:
    for estimate in (fits, runs_out):
        assert max(map(len, shown(estimate, width).splitlines())) <= width


def test_sizes_of_ranks_are_not_broken_and_a_remark_is(fits: Estimate) -> None:
    size = round(26.98 * GIB)
    peak = PeakMemory(
        allocated_bytes=size, reserved_bytes=size, library_bytes=size, context_bytes=0, device_low_bytes=size,
        device_high_bytes=2 * size, request_bytes=2 * size,
    )  # fmt: skip
    rank = RankEstimate(
        rank=0, stands_for=(0, 1, 4, 5), local_rank=0, verdict="fits", peak=peak, num_steps=3, spare_bytes=size,
        needed_by=7,
    )  # fmt: skip
    estimate = replace(fits, world=World(size=8, ranks_run=(0, 7), worst_rank=0), ranks=(rank,))
    (row,) = [line for line in shown(estimate).splitlines() if line.count("26.98 GiB") == 4]
    assert "rank 7" in row


def test_the_table_says_what_is_needed_and_what_is_spare(fits: Estimate) -> None:
    output = shown(fits)
    assert "FITS" in output
    assert "needs 5.16 GiB of 11.76 GiB, 6.60 GiB to spare" in output
    assert "5.00 GiB to 7.00 GiB" in output
    assert "2.15.0+cu132, CUDA 13.2" in output


def test_steps_are_listed_when_they_differ_and_not_when_they_do_not(fits: Estimate) -> None:
    assert "3.0 KiB" in shown(fits)
    same = tuple(StepPeak(index=i, peak_allocated_bytes=5, peak_reserved_bytes=9) for i in range(3))
    assert "5 B" not in shown(replace(fits, steps=same))


def test_steps_that_look_the_same_share_a_line_and_an_evaluation_has_its_own(fits: Estimate) -> None:
    peak = fits.peak.reserved_bytes
    steps = tuple(StepPeak(index=i, peak_allocated_bytes=GIB, peak_reserved_bytes=peak - i) for i in (2, 1))
    evaluation = OutsidePeak(kind="evaluation", after_step=2, peak_allocated_bytes=MIB, peak_reserved_bytes=peak)
    output = shown(replace(fits, steps=steps, outside_steps=(evaluation,)), 100)
    lines = [line.split() for line in output.splitlines()]
    assert ["1", "to", "2", "1.00", "GiB", "5.00", "GiB"] in lines
    assert ["evaluation", "after", "step", "2", "1.0", "MiB", "5.00", "GiB", "peak", "reserved"] in lines
    assert "2 run; peak first reached in evaluation after step 2, within 0.1 % from step 1 on" in output


def test_a_step_that_was_not_finished_has_a_line(fits: Estimate) -> None:
    """Gradients of the last batches, for which there was no optimizer step any more."""
    steps = (StepPeak(index=0, peak_allocated_bytes=GIB, peak_reserved_bytes=fits.peak.reserved_bytes),)
    rest = OutsidePeak(kind="unfinished", after_step=0, peak_allocated_bytes=MIB, peak_reserved_bytes=GIB)
    lines = [line.split() for line in shown(replace(fits, steps=steps, outside_steps=(rest,))).splitlines()]
    assert ["step", "1,", "unfinished", "1.0", "MiB", "1.00", "GiB"] in lines


def test_of_many_steps_the_first_the_peak_and_the_last_are_listed(fits: Estimate) -> None:
    peak = fits.peak.reserved_bytes
    steps = tuple(
        StepPeak(index=i, peak_allocated_bytes=i * MIB, peak_reserved_bytes=peak if i >= 50 else MIB)
        for i in range(100)
    )
    lines = [line.split() for line in shown(replace(fits, steps=steps)).splitlines()]
    listed = [line[0] for line in lines if line and (line[0].isdigit() or line[0] == "...")]
    assert listed == ["0", "1", "2", "...", "50", "...", "98", "99"]


def test_an_oom_is_told_in_pytorchs_words_with_step_phase_and_line(runs_out: Estimate) -> None:
    output = shown(runs_out)
    assert "OUT OF MEMORY" in output
    assert "in step 1, backward, at" in output
    assert "train.py:57" in output
    assert "Tried to allocate 2.00 GiB. GPU 0 has [1]" in output


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("Net.layers.*.linear", 30, ["Net.layers.*.linear"]),
        ("LlamaForCausalLM.model.layers.*.mlp.gate_proj", 25, ["LlamaForCausalLM.model.", "layers.*.mlp.gate_proj"]),
        ("activation of GPT2.blocks.*.mlp", 26, ["activation of", "GPT2.blocks.*.mlp"]),
        ("mm\n  functional.cross_entropy, forward", 16, ["mm", "  functional.", "  cross_entropy,", "  forward"]),
        ("no_dot_in_it", 8, ["no_dot_i", "n_it"]),
    ],
)
def test_a_long_name_goes_on_after_a_space_or_a_dot(name: str, width: int, lines: list[str]) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    found = console.render_lines(Dotted(Text(name)), pad=False)
    assert ["".join(segment.text for segment in line).rstrip() for line in found] == lines


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("Net.layers.*.linear", 19, "Net.layers.*.linear"),
        ("Net.layers.*.mlp.linear", 22, "Net.….*.mlp.linear"),
        ("Net.layers.*.mlp.linear", 14, "Net.….linear"),
        ("Net.layers.*.linear", 9, "Ne…linear"),
        ("no_dot_in_it", 8, "n…_in_it"),
    ],
)
def test_a_long_name_is_shortened_in_the_middle(name: str, width: int, shown: str) -> None:
    assert shortened(name, width) == shown
    assert len(shown) <= width


def test_what_names_share_ends_at_a_dot_and_one_name_shares_nothing() -> None:
    assert shared_prefix(["Net.layers.*.up", "Net.layers.*.down", "Net.layers"]) == "Net.layers"
    assert shared_prefix(["Net.layer1", "Net.layer2"]) == "Net"
    assert shared_prefix(["Net.layer", "Net.layer"]) == ""
    assert shared_prefix(["Net.layer", "Other.layer"]) == ""


def test_names_use_a_wide_terminal_and_give_way_in_a_narrow_one(fits: Estimate) -> None:
    estimate = replace(fits, attribution=transformer(num_layers=3, num_steps=2))
    wide, middle, narrow = (shown(estimate, width) for width in (140, 100, 80))
    assert "LlamaForCausalLM.model.layers.*.mlp.gate_proj" in wide
    assert "modeling_llama.py:520 (transformers)" in wide
    assert "model.layers.*.mlp.gate_proj  train.py:64" in middle
    assert "modules of LlamaForCausalLM\n" in re.sub(" +\n", "\n", middle)
    assert "modeling_llama.py:520*" in narrow
    assert "modules of LlamaForCausalLM; * in a library" in narrow


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_who_holds_the_memory_keeps_to_the_width(fits: Estimate, width: int) -> None:
    output = shown(replace(fits, attribution=transformer(num_layers=3, num_steps=2)), width)
    assert max(map(len, output.splitlines())) <= width
    assert "gate_proj" in output
    assert "train.py:64" in output


def test_numbers_of_steps_stand_apart(fits: Estimate) -> None:
    output = shown(replace(fits, attribution=transformer(num_layers=1, num_steps=60))).splitlines()
    numbers = output[next(n for n, line in enumerate(output) if "memory by step" in line) - 1].split()
    assert numbers[0] == "0"
    assert list(map(int, numbers)) == sorted(set(map(int, numbers)))
    assert 10 < len(numbers) <= 60
    assert all(int(number) < 60 for number in numbers)


def test_what_to_do_about_leaks_is_said_once(fits: Estimate) -> None:
    output = shown(replace(fits, leaks=(LEAKS[0], LEAKS[0])))
    assert output.count("LEAK") == 2
    assert output.count("loss.item()") == 1


def test_growth_that_no_training_is_long_enough_for_is_a_note_and_no_leak(fits: Estimate) -> None:
    little = replace(LEAKS[0], bytes_per_step=4096)
    one, two = replace(fits, leaks=(little,)), replace(fits, leaks=(little, little))
    note, banner = (" ".join(shown(each).split()) for each in (one, two))
    assert "LEAK" not in note
    assert "grows by 4.0 KiB per step, allocated at /home/ada/llm/train.py:66. That is little: the card" in note
    assert banner.count("LEAK") == 2, "what they add up to decides"
    spare = capacity_of(fits).spare_bytes(fits.device_bytes)
    assert json.loads(json_report.render(two))["steps_until_full"] == spare // 8192 < LONGEST_TRAINING < spare // 4096


def test_redirected_files_and_caveats_are_told(fits: Estimate) -> None:
    told = replace(
        fits, isolation=None, redirected_writes=("a", "b"), caveats=("mind [this]",), not_sent=("wandb",)
    )
    lines = [line.split() for line in shown(told).splitlines()]
    assert ["writes", "2", "files", "redirected", "to", "a", "scratch", "folder"] in lines
    assert ["!", "mind", "[this]"] in lines
    assert ["not", "sent", "wandb"] in lines


def test_the_json_has_the_keys_of_its_schema(fits: Estimate) -> None:
    document = json.loads(json_report.render(fits))
    assert (document["schema"], document["engine"], document["verdict"]) == ("foretell.estimate/1", "virtual", "fits")
    assert (document["gpu"]["name"], document["gpu"]["total_bytes"]) == ("rtx-3060", 12622168064)
    assert (document["torch"], document["oom"], document["caveats"]) == ("2.15.0+cu132", None, [])
    expected = {
        "allocated_bytes": 4 * GIB,
        "reserved_bytes": 5 * GIB,
        "library_bytes": 0,
        "context_bytes": 160 * MIB,
        "device_bytes": 5 * GIB + 160 * MIB,
        "device_low_bytes": 5 * GIB,
        "device_high_bytes": 7 * GIB,
        "request_bytes": 8 * GIB,
    }
    assert {name: document["peak"][name] for name in expected} == expected
    assert document["steps"][0] == {"index": 0, "peak_allocated_bytes": 5120, "peak_reserved_bytes": 2 * MIB}
    assert {"total", "script"} <= document["seconds"].keys()


def test_what_others_have_of_the_card_is_shown_and_not_to_spare(fits: Estimate) -> None:
    output = shown(replace(fits, used_by_others_bytes=2 * GIB))
    assert "of 9.76 GiB" in output
    assert "--used-by-others" in output
    assert "8.00 GiB" in output  # the request


def test_the_json_of_an_oom_says_where(runs_out: Estimate) -> None:
    oom = json.loads(json_report.render(runs_out))["oom"]
    assert (oom["step"], oom["phase"], oom["requested_bytes"], oom["where"]) == (
        1,
        "backward",
        2 * GIB,
        "/job/train.py:57",
    )
