"""A profile of the CPU gives what a run on the virtual GPU gives; each rule alone; and what is no profile."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from conftest import TESTS, CpuReference
from foretell import gpus, rules
from foretell.analysis.verdict import estimate_of
from foretell.engines import imported as cpu
from foretell.engines.imported import (
    Card,
    RecordedJob,
    attention_calls,
    kernel_memory,
    optimizers,
    parameters,
    passes,
    recurrent_calls,
)
from foretell.engines.imported.analysis import JobBlock
from foretell.engines.imported.convolution_calls import convolutions_of
from foretell.engines.imported.cpu_profile import Operator, Tensor
from foretell.engines.imported.library_calls import library_calls
from foretell.engines.imported.moments import BEFORE, NEVER, START, after, before
from foretell.engines.imported.simulation import simulate
from foretell.errors import UnsupportedError, UsageError
from foretell.rules.convolution import Convolution, Direction
from foretell.rules.convolution_plans import planned_workspace
from foretell.rules.convolution_workspaces import fitted_workspace, workspace_by_rule
from foretell.trace import load, save
from foretell.units import MIB
from warm_runs import WarmRuns

CARD = Card(gpu=gpus.find("rtx-3060"))
JOB = TESTS / "recorded_job.py"
pytestmark = pytest.mark.xdist_group("import")
"""They share what was recorded."""


# --- profiles by hand -------------------------------------------------------------------------------------------------


@dataclass
class Span:
    """An operator and what happens in it: other spans, ("name", bytes) for a birth, "name" for a death."""

    name: str
    inside: list[Any] = field(default_factory=list)
    shapes: list[Any] = field(default_factory=list)
    """Of the tensors; a list of shapes for a list of tensors."""
    strides: list[Any] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    sequence: int | None = None
    element: str = "float"
    is_annotation: bool = False


def backward(node: str, sequence: int, *inside: Any) -> Span:
    return Span(f"autograd::engine::evaluate_function: {node}", list(inside), sequence=sequence)


def accumulate(*shape: int) -> Span:
    inner = Span("torch::autograd::AccumulateGrad", shapes=[list(shape)])
    return Span("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", [inner])


def optimizer(name: str, *inside: Any) -> Span:
    return Span(f"Optimizer.step#{name}.step", list(inside), is_annotation=True)


def document(*script: Any) -> dict[str, Any]:
    clock, sizes, addresses, events = count(1), {}, {}, []

    def memory(address: int, num_bytes: int) -> None:
        arguments = {"Addr": address, "Bytes": num_bytes, "Device Type": 0, "Device Id": -1}
        events.append({"ph": "i", "name": "[memory]", "tid": 1, "ts": next(clock), "args": arguments})

    def walk(item: Any) -> None:
        if isinstance(item, tuple):
            name, sizes[name] = item
            addresses[name] = 4096 * (len(addresses) + 1)
            memory(addresses[name], sizes[name])
        elif isinstance(item, str):
            memory(addresses[item], -sizes[item])
        else:
            begin = next(clock)
            for each in item.inside:
                walk(each)
            kinds = ["TensorList" if each and isinstance(each[0], list) else item.element for each in item.shapes]
            arguments: dict[str, Any] = {"Input Dims": item.shapes, "Input type": kinds}
            if item.strides:
                arguments["Input Strides"] = item.strides
            if item.values:
                arguments["Concrete Inputs"] = item.values
            if item.sequence is not None:
                arguments["Sequence number"] = item.sequence
            kind = "user_annotation" if item.is_annotation else "cpu_op"
            length = next(clock) - begin
            events.append(
                {"ph": "X", "cat": kind, "name": item.name, "tid": 1, "ts": begin, "dur": length, "args": arguments}
            )

    for item in script:
        walk(item)
    return {"schemaVersion": 1, "traceEvents": events}


def job_of(tmp_path: Path, *script: Any) -> RecordedJob:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document(*script)))
    return cpu.analyse(cpu.read(path))


def sizes(blocks: tuple[JobBlock, ...]) -> list[int]:
    return sorted(block.num_bytes for block in blocks)


def a_step(number: int = 0) -> list[Any]:
    """One of a layer of 64 x 64, with Adam as the CPU runs it."""
    at, first = f"{number}", 10 * number + 1
    transposed = Span("aten::t", shapes=[[64, 64]], sequence=first)
    product = Span("aten::addmm", [(f"y{at}", 4096)], [[64], [16, 64], [64, 64]], sequence=first + 1)
    state = [Span("aten::zeros_like", [(f"state{at}", 16384)])] if number == 0 else []
    return [
        Span("aten::randn", [(f"sample{at}", 333)]),
        f"sample{at}",
        Span("aten::randn", [(f"x{at}", 4096)]),
        Span("aten::linear", [transposed, product], [[16, 64], [64, 64], [64]], sequence=first),
        backward("AddmmBackward0", first + 1, Span("aten::mm", [(f"dw{at}", 16384)], [[64, 16], [16, 64]]), f"y{at}"),
        backward("TBackward0", first),
        accumulate(64, 64),
        optimizer("Adam", *state, Span("aten::sqrt", [(f"root{at}", 16384)]), f"root{at}"),
        f"dw{at}",
        f"x{at}",
    ]


# --- reading and analysis ---------------------------------------------------------------------------------------------


def test_blocks_live_from_birth_to_death_and_have_a_phase(tmp_path: Path) -> None:
    job = job_of(tmp_path, *a_step())
    found = {(block.num_bytes, job.phase_of(block), block.category) for block in job.blocks}
    assert (4096, "forward", "activation") in found
    assert (16384, "backward", "gradient") in found
    assert (16384, "optimizer", "optimizer_state") in found
    assert (16384, "optimizer", "temporary") in found
    assert (4096, "other", "input") in found
    assert [step.name for step in job.optimizer_steps] == ["Adam"]


def test_a_node_belongs_to_the_last_operator_with_its_number(tmp_path: Path) -> None:
    """Operators without a node show the number of the next one that has one."""
    script = [Span("aten::to", sequence=1), Span("aten::relu", sequence=1), backward("ReluBackward0", 1)]
    job = job_of(tmp_path, ("x", 8), *script)
    assert [job.operators[number].name for number in job.nodes] == ["aten::relu"]
    assert job.phases == ("other", "forward", "backward")


def test_an_address_is_given_again_after_its_block_died(tmp_path: Path) -> None:
    made = document(Span("aten::empty", [("a", 100)]), "a", Span("aten::empty", [("b", 200)]))
    for event in made["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"]["Addr"] = 4096
    (tmp_path / "p.json").write_text(json.dumps(made))
    blocks = cpu.analyse(cpu.read(tmp_path / "p.json")).blocks
    assert [(block.num_bytes, block.died == NEVER) for block in blocks] == [(100, False), (200, True)]


def test_a_death_without_birth_was_there_before(tmp_path: Path) -> None:
    made = document(Span("aten::empty", [("a", 100)]), "a")
    made["traceEvents"] = [e for e in made["traceEvents"] if e.get("args", {}).get("Bytes") != 100]
    (tmp_path / "p.json").write_text(json.dumps(made))
    (block,) = cpu.analyse(cpu.read(tmp_path / "p.json")).blocks
    assert (block.born, block.num_bytes) == (BEFORE, 100)


def test_steps_of_the_profiler_win_over_those_of_optimizers(tmp_path: Path) -> None:
    inside = [Span("aten::empty", [("a", 8)]), optimizer("Adam"), optimizer("Adam")]
    job = job_of(tmp_path, Span("ProfilerStep#0", inside, is_annotation=True))
    assert len(job.optimizer_steps) == 2
    assert job.step_ends == (job.optimizer_steps[1].end,)


# --- passes -----------------------------------------------------------------------------------------------------------


def test_samples_stay_on_the_host_and_batches_are_moved_when_used(tmp_path: Path) -> None:
    job = job_of(tmp_path, *a_step())
    kept = passes.drop_host_tensors(job, CARD)
    assert 333 not in sizes(kept)
    (batch,) = [block for block in kept if block.category == "input"]
    assert before(job.stretches[0].begin) < batch.born < job.stretches[0].begin


def test_a_data_set_stays_on_the_host(tmp_path: Path) -> None:
    job = job_of(tmp_path, Span("aten::randn", [("dataset", 99 * 4096)]), *a_step())
    assert 99 * 4096 not in sizes(passes.drop_host_tensors(job, CARD))


def test_numbers_wrapped_into_tensors_stay_on_the_host(tmp_path: Path) -> None:
    script = [Span("aten::mul", [("number", 8), ("result", 8), "number"]), optimizer("Adam", ("step", 4))]
    job = job_of(tmp_path, *script)
    assert sizes(passes.drop_scalars(job, CARD)) == [8]


def test_scratch_of_onednn_is_dropped_and_its_result_kept(tmp_path: Path) -> None:
    inside = [("reordered", 5000), Span("aten::empty", [("y", 4000)]), "reordered"]
    job = job_of(tmp_path, Span("aten::convolution", [Span("aten::mkldnn_convolution", inside)]))
    assert sizes(passes.drop_scratch(job, CARD)) == [4000]


def test_parameters_from_before_are_found_by_their_gradients(tmp_path: Path) -> None:
    job = job_of(tmp_path, *a_step(0), *a_step(1))
    assert [tensor.shape for tensor in parameters.trained(job)] == [(64, 64)]
    added = set(passes.add_parameters(job, CARD)) - set(job.blocks)
    assert [(block.num_bytes, block.category) for block in added] == [(16384, "parameter")]


def test_parameters_that_were_recorded_are_named_and_not_added_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, Span("aten::empty", [("weight", 16384)]), *a_step())
    (weight,) = [block for block in job.blocks if block.born < job.first_training_tick and block.num_bytes == 16384]
    expected = set(job.blocks) - {weight} | {replace(weight, category="parameter")}
    assert set(passes.add_parameters(job, CARD)) == expected


def test_accumulated_backward_passes_are_one_set_of_parameters(tmp_path: Path) -> None:
    twice = [Span("ProfilerStep#0", [*a_step(0)[3:7], *a_step(1)[3:7]], is_annotation=True)]
    job = job_of(tmp_path, *twice)
    assert len(parameters.trained(job)) == 1


def test_a_weight_without_gradient_is_found_by_its_use(tmp_path: Path) -> None:
    def linear(sequence: int) -> Span:
        transposed = Span("aten::t", shapes=[[32, 64]], sequence=sequence)
        product = Span("aten::addmm", [], [[32], [16, 64], [64, 32]], sequence=sequence + 1)
        return Span("aten::linear", [transposed, product], [[16, 64], [32, 64], [32]], sequence=sequence)

    frozen, trained = linear(1), linear(3)
    job = job_of(tmp_path, ("x", 8), frozen, trained, backward("TBackward0", 3), backward("AddmmBackward0", 4))
    assert [tensor.shape for tensor in parameters.frozen(job, ())] == [(32, 64)]


def test_dropout_masks_have_one_byte_an_element(tmp_path: Path) -> None:
    mask, result = Span("aten::empty_like", [("mask", 4096)]), Span("aten::mul", [("y", 4096)])
    job = job_of(tmp_path, Span("aten::dropout", [mask, result], [[16, 64]]))
    assert sizes(passes.shrink_dropout_masks(job, CARD)) == [1024, 4096]


def test_adam_holds_a_list_as_long_as_the_model(tmp_path: Path) -> None:
    roots = [Span("aten::sqrt", [("a", 4000)]), "a", Span("aten::sqrt", [("b", 8000)]), "b"]
    job = job_of(tmp_path, optimizer("Adam", Span("aten::zeros_like", [("state", 4000)]), *roots))
    lists = [block for block in optimizers.rewrite(job, CARD) if block.category == "temporary"]
    assert sizes(tuple(lists)) == [4000, 8000]
    assert max(block.born for block in lists) < min(block.died for block in lists)


def test_nesterov_adds_in_place_on_a_card(tmp_path: Path) -> None:
    adds = [Span("aten::add", [("decayed", 16384)]), Span("aten::add", [("nesterov", 16384)]), "nesterov", "decayed"]
    job = job_of(tmp_path, ("x", 8), accumulate(64, 64), optimizer("SGD", *adds))
    assert sizes(optimizers.rewrite(job, CARD)) == [8, 16384]


def test_an_optimizer_that_the_script_made_foreach_is_left_alone(tmp_path: Path) -> None:
    job = job_of(tmp_path, optimizer("Adam", Span("aten::_foreach_sqrt", [("a", 4000)]), "a"))
    assert optimizers.rewrite(job, CARD) == job.blocks


def test_state_that_the_first_recorded_step_does_not_make_was_there_before(tmp_path: Path) -> None:
    job = job_of(tmp_path, *a_step(1))
    states = [block for block in optimizers.rewrite(job, CARD) if block.category == "optimizer_state"]
    assert [(block.num_bytes, block.born < START) for block in states] == [(16384, True), (16384, True)]


def test_an_unknown_optimizer_is_said(tmp_path: Path) -> None:
    assert optimizers.unknown_optimizers(job_of(tmp_path, ("x", 8), optimizer("Lion"))) == {"Lion"}


@pytest.mark.parametrize(
    ("element", "width", "has_mask", "gpu", "backend"),
    [
        ("float", 64, False, "rtx-3060", "efficient"),
        ("float", 63, False, "rtx-3060", "math"),
        ("c10::Half", 64, False, "rtx-3060", "flash"),
        ("c10::Half", 64, True, "rtx-3060", "efficient"),
        ("c10::Half", 64, False, "16GiB,sm75", "efficient"),
        ("c10::BFloat16", 64, False, "16GiB,sm75", "math"),
        ("double", 64, False, "rtx-3060", "math"),
        ("c10::Half", 64, False, "h100", "cudnn"),
    ],
)
def test_the_card_chooses_the_attention_kernel(
    element: str, width: int, has_mask: bool, gpu: str, backend: str
) -> None:
    side = Tensor(shape=(2, 4, 128, width), element=element)
    called = replace(
        operator("aten::_scaled_dot_product_flash_attention_for_cpu", values=("", "", "", "0.", "False")),
        inputs=(side, side, side, None, None, side if has_mask else None),
    )
    found = attention_calls.attention_of(called, needs_grad=True)
    assert found is not None
    assert attention_calls.choice_of(found, replace(CARD, gpu=gpus.find(gpu))).backend == backend


def test_explain_says_why_the_card_does_not_take_flash(tmp_path: Path) -> None:
    shapes = [[2, 4, 32, 64]] * 3
    math = Span("aten::_scaled_dot_product_attention_math", [("out", 8)], shapes, sequence=1)
    job = job_of(tmp_path, math, math, backward("BmmBackward0", 1))
    _, results = cpu.apply(job, CARD, with_peaks=True)
    (found,) = [result.what for result in results if result.name == "attention"]
    assert found.endswith(": 2 by efficient (not flash: not in half precision)")


def test_parts_of_attention_give_way_to_a_fused_kernel(tmp_path: Path) -> None:
    """2 x 4 heads, 32 long, 64 wide: the matrix goes, the output stays, its copy goes, the log-sum-exp comes."""
    out, matrix, saved = 2 * 4 * 32 * 64 * 4, 2 * 4 * 32 * 32 * 4, 2 * 4 * 32 * 4
    bmm = Span("aten::bmm", [("scores", matrix), ("out", out)], [[8, 32, 64], [8, 64, 32]], sequence=1)
    math = Span("aten::_scaled_dot_product_attention_math", [bmm], [[2, 4, 32, 64]] * 3, sequence=1)
    copied = Span("aten::contiguous", [("copy", out)], sequence=2)
    node = backward("BmmBackward0", 1, Span("aten::bmm", [("d_scores", matrix)]), "d_scores", "scores", "out")
    job = job_of(tmp_path, math, Span("aten::transpose"), copied, node, "copy")
    blocks = attention_calls.rewrite(job, CARD)
    assert sizes(tuple(block for block in blocks if block.category == "activation")) == [saved, out]
    assert matrix not in sizes(blocks)
    assert attention_calls.replaced_operators(job, CARD) >= {1}
    assert kernel_memory.WORKSPACES["aten::bmm"](job.operators[1], CARD)
    assert not [b for b in passes.add_workspaces(job, CARD) if b.category == "workspace"]


def operator(name: str, *shapes: tuple[int, ...], values: tuple[str, ...] = (), element: str = "float") -> Operator:
    inputs = tuple(Tensor(shape=shape, element=element) for shape in shapes)
    return Operator(name=name, begin=0, end=9, parent=None, inputs=inputs, values=values)


@pytest.mark.parametrize(
    ("shape", "buffers"),
    [((1024, 256), (2097152, 8)), ((1024, 1024), (8388608, 32)), ((4096, 8000), (24576000, 252)), ((256, 2048), ())],
)
def test_sums_over_rows_share_a_buffer(shape: tuple[int, int], buffers: tuple[int, ...]) -> None:
    """As the real PyTorch asks for on the virtual RTX 3060."""
    summed = operator("aten::sum", shape, values=("", "[0]", "True", ""))
    assert kernel_memory.sum_of_rows(summed, CARD) == buffers


def test_group_norm_sums_over_groups_and_channels() -> None:
    """As the real PyTorch asks for on the virtual RTX 3060."""
    shape, numbers = (512, 64, 8, 8), ("512", "64", "64", "32")
    forward = operator("aten::native_group_norm", shape, (64,), (64,), values=("", "", "", *numbers, "1e-05"))
    assert kernel_memory.group_norm(forward, CARD) == (131072, 131072)
    plain = operator("aten::native_group_norm", shape, values=("", "", "", *numbers, "1e-05"))
    assert kernel_memory.group_norm(plain, CARD) == ()
    half = replace(forward, inputs=tuple(replace(tensor, element="c10::Half") for tensor in forward.tensors))
    assert kernel_memory.group_norm(half, CARD) == (65536, 65536, 131072, 131072)
    tensors = (shape, shape, (512, 32), (512, 32), (64,))
    values = ("", "", "", "", "", *numbers, "[True, True, True]")
    backward = operator("aten::native_group_norm_backward", *tensors, values=values)
    assert kernel_memory.group_norm_backward(backward, CARD) == (131072, 131072, 65536, 65536, 131072)
    frozen = replace(backward, values=(*values[:-1], "[False, True, True]"))
    assert kernel_memory.group_norm_backward(frozen, CARD) == (131072, 131072)


def test_the_backward_pass_of_an_embedding_sorts_many_indices() -> None:
    many = operator("aten::embedding_dense_backward", (32, 128, 256), (32, 128), values=("", "", "8000", "-1", "False"))
    assert max(kernel_memory.embedding_backward(many, CARD)) == 4613120
    few = operator("aten::embedding_dense_backward", (2, 128, 256), (2, 128), values=("", "", "8000", "-1", "False"))
    assert kernel_memory.embedding_backward(few, CARD) == ()


def test_a_median_of_all_elements_sorts_them() -> None:
    """Bytes as on the virtual RTX 3060."""
    whole = operator("aten::median", (100, 1000), values=("",))
    assert kernel_memory.median(whole, CARD) == (400_000, 800_000, 800_000, 1_242_623)
    assert kernel_memory.median(operator("aten::median", (100, 1000), values=("", "1", "False")), CARD) == ()


def test_several_draws_with_replacement_take_two_copies_of_the_weights() -> None:
    """Without replacement, and for one draw, the operators that it calls are recorded on the CPU too."""
    drawn = {
        values: kernel_memory.multinomial(operator("aten::multinomial", (64, 2000), values=("", *values, "")), CARD)
        for values in (("100", "True"), ("1", "True"), ("100", "False"))
    }
    assert drawn == {("100", "True"): (512_000, 512_000), ("1", "True"): (), ("100", "False"): ()}


def test_a_sort_of_long_rows_takes_keys_and_places_once_more() -> None:
    """The operator without `stable` calls the one with it, which is counted. Bytes as on the virtual RTX 3060."""
    values = ("", "False", "-1", "False")
    assert kernel_memory.sort(operator("aten::sort", (8, 100), values=("", "-1", "False")), CARD) == ()
    assert kernel_memory.sort(operator("aten::sort", (8, 100), values=values), CARD) == (800,)
    assert kernel_memory.sort(operator("aten::sort", (1, 100_000), values=values), CARD) == (800_000, 1_242_623)
    columns = replace(
        operator("aten::sort", values=("", "False", "0", "False")),
        inputs=(Tensor(shape=(100_000, 1), element="float", strides=(2, 1)),),
    )
    assert kernel_memory.sort(columns, CARD) == (400_000, 400_000, 800_000, 800_000, 1_242_623)


def test_cublas_has_a_workspace_for_each_call_or_for_each_thread(tmp_path: Path) -> None:
    job = job_of(tmp_path, *a_step())

    def workspaces(card: Card) -> list[tuple[int, bool]]:
        blocks = passes.add_workspaces(job, card)
        return sorted((block.num_bytes, block.died == NEVER) for block in blocks if block.category == "workspace")

    assert workspaces(CARD) == [(MIB, False), (8519680, False)]
    assert workspaces(replace(CARD, torch=(2, 6))) == [(MIB, False), (8519680, True), (8519680, True)]
    assert workspaces(replace(CARD, gpu=gpus.find("h100")))[-1] == (32 * MIB, False)


def reserved(made: dict[str, Any], path: Path) -> int:
    path.write_text(json.dumps(made))
    return cpu.import_profile(path, CARD).trace.final[0].peak_reserved_bytes


def test_cublas_is_configured_by_the_profile_and_not_by_the_shell_that_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """65536 KiB eight times, as the shell of whoever imports may say for another job."""
    path, made = tmp_path / "profile.json", document(*a_step())
    plain = reserved(made, path)
    assert reserved(made | {"CUBLAS_WORKSPACE_CONFIG": ":65536:8"}, path) == plain + 492 * MIB
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":65536:8")
    assert reserved(made, path) == plain


def test_rules_do_not_read_the_environment_they_run_in() -> None:
    for path in sorted((Path(rules.__file__).parent).glob("*.py")):
        assert "environ" not in path.read_text(), path


def layer(direction: Direction = "forward", **unlike: Any) -> Convolution:
    """64 channels, 16 x 16 pixels, filters of 3 x 3, in float32."""
    plain: dict[str, Any] = {
        "x": (2, 64, 16, 16), "y": (2, 64, 16, 16), "w": (64, 64, 3, 3), "stride": (1, 1), "padding": (1, 1),
        "dilation": (1, 1), "groups": 1, "element_bytes": 4, "is_channels_last": False,
    }  # fmt: skip
    return Convolution(direction=direction, **{**plain, **unlike})


def test_convolutions_take_the_workspace_of_the_rule() -> None:
    """In bytes as native/libraries/convolution.c has them: x and y of 2 x 64 x 16 x 16, w of 64 x 64 x 3 x 3."""
    copies = 4 * (2 * 2 * 64 * 16 * 16 + 64 * 64 * 9)
    assert fitted_workspace(layer("forward"), (8, 0)) == copies
    assert fitted_workspace(layer("data"), (8, 0)) == 2 * copies
    assert fitted_workspace(layer("weights"), (8, 0)) == copies + 3 * 4 * 64 * 64 * 9
    assert fitted_workspace(layer("forward"), (8, 6)) == 0
    assert fitted_workspace(layer("forward", element_bytes=2), (8, 0)) == 0
    assert fitted_workspace(layer("forward", w=(64, 64, 1, 1)), (8, 0)) == 0


def test_the_rule_of_a_convolution_follows_the_version_of_torch() -> None:
    old, new = fitted_workspace(layer("data"), (8, 0)), planned_workspace(layer("data"), (8, 0))
    assert (old, new) == (2 * 409600, 409600 + 16)
    assert workspace_by_rule(layer("data"), (8, 0), (2, 7)) == old
    assert workspace_by_rule(layer("data"), (8, 0), (2, 8)) == new
    videos = layer("data", x=(2, 64, 4, 16, 16), y=(2, 64, 4, 16, 16), w=(64, 64, 3, 3, 3))
    assert workspace_by_rule(videos, (8, 0), (2, 8)) == 0


def values_of(
    stride: int, padding: int, *, is_transposed: bool = False, groups: int = 1, rank: int = 2, mask: str = ""
) -> tuple[str, ...]:
    """As a profile has them, of `aten::convolution`; with a mask of `aten::convolution_backward`."""
    lists = [str([number] * rank) for number in (stride, padding, 1, 0)]
    how = (*lists[:3], str(is_transposed), lists[3], str(groups))
    return ("", "", "", "[4]", *how, mask) if mask else ("", "", "", *how)


def test_a_convolution_says_what_it_reads_and_writes(tmp_path: Path) -> None:
    shapes = [[2, 8, 16, 16], [4, 8, 3, 3]]
    job = job_of(tmp_path, ("x", 8), Span("aten::convolution", [], shapes, values=list(values_of(2, 1))))
    (call,) = library_calls(job, CARD)
    assert (call.x_bytes, call.y_bytes, call.w_bytes) == (16384, 4 * 2 * 4 * 8 * 8, 1152)


def test_a_transposed_convolution_is_the_data_gradient_of_another() -> None:
    given, w, made = (2, 64, 8, 8), (64, 32, 4, 4), (2, 32, 16, 16)
    forward = convolutions_of(operator("aten::convolution", given, w, values=values_of(2, 1, is_transposed=True)), CARD)
    mask = "[True, True, True]"
    backward = convolutions_of(
        operator("aten::convolution_backward", made, given, w, values=values_of(2, 1, is_transposed=True, mask=mask)),
        CARD,
    )
    assert forward is not None
    assert backward is not None
    calls = (*forward.calls, *backward.calls)
    assert {(call.x, call.y, call.w) for call in calls} == {(made, given, w)}
    assert [call.direction for call in calls] == ["data", "forward", "weights"]


def test_one_dimension_is_done_as_two() -> None:
    flat = operator("aten::convolution", (4, 8, 100), (16, 8, 5), values=values_of(2, 2, rank=1))
    found = convolutions_of(flat, CARD)
    assert found is not None
    (call,) = found.calls
    assert (call.x, call.w, call.y) == ((4, 8, 1, 100), (16, 8, 1, 5), (4, 16, 1, 50))
    assert (call.stride, call.padding, call.dilation) == ((1, 2), (0, 2), (1, 1))


@pytest.mark.parametrize(
    ("groups", "strides", "element", "gpu", "is_by_cudnn"),
    [
        (1, (2048, 256, 16, 1), "float", "rtx-3060", True),
        (8, (2048, 256, 16, 1), "float", "rtx-3060", False),  # depthwise
        (8, (2048, 1, 128, 8), "float", "rtx-3060", True),  # channels last
        (4, (2048, 256, 16, 1), "float", "rtx-3060", True),  # grouped
        (1, (2048, 256, 16, 1), "c10::BFloat16", "16GiB,sm75", False),
    ],
)
def test_pytorch_computes_some_convolutions_itself(
    groups: int, strides: tuple[int, ...], element: str, gpu: str, is_by_cudnn: bool
) -> None:
    x = Tensor(shape=(2, 8, 16, 16), element=element, strides=strides)
    w = Tensor(shape=(8, 8 // groups, 3, 3), element=element)
    called = replace(operator("aten::convolution", values=values_of(1, 1, groups=groups)), inputs=(x, w))
    found = convolutions_of(called, replace(CARD, gpu=gpus.find(gpu)))
    assert found is not None
    assert found.is_by_cudnn == is_by_cudnn
    assert [call.is_channels_last for call in found.calls] == [strides[1] == 1]


def a_backward_convolution(tmp_path: Path, batch: int) -> RecordedJob:
    """64 channels, 32 x 32 pixels, filters of 3 x 3."""
    shape, w = [batch, 64, 32, 32], [64, 64, 3, 3]
    made = [("dx", batch * 262144), ("dw", 147456)]
    values = list(values_of(1, 1, mask="[True, True, False]"))
    return job_of(tmp_path, Span("aten::convolution_backward", made, [shape, shape, w], values=values))


def test_each_gradient_of_a_convolution_has_its_own_workspace(tmp_path: Path) -> None:
    """Copies of x, y and w and 16 bytes; for the weights also parts of the sum."""
    job = a_backward_convolution(tmp_path, batch=8)
    blocks = passes.add_workspaces(job, CARD)
    data, weights = sorted((b for b in blocks if b.category == "workspace"), key=lambda block: block.born)
    dx, dw = job.blocks
    assert (data.num_bytes, weights.num_bytes) == (4341776, 4341776 + 5 * 147456 + 128)
    assert dx.born < data.born < data.died < dw.born < weights.born


def test_a_convolution_does_without_a_workspace_there_is_no_room_for(tmp_path: Path) -> None:
    job, _ = cpu.apply(a_backward_convolution(tmp_path, batch=64), CARD)
    assert max(sizes(job.blocks)) > 32 * MIB
    trace = simulate(job, gpus.find(f"{300 << 20},sm86"), context_bytes=(300 - 24) * MIB)
    assert trace.ooms == ()
    assert max(trace.memory.size) == 16 * MIB


# --- recurrent nets ---------------------------------------------------------------------------------------------------

X, OUT, STATE = 4 * 8 * 10 * 16, 4 * 8 * 10 * 32, 4 * 8 * 32
"""8 samples of 10 steps and 16 numbers; 32 wide."""
WEIGHTS = [[128, 16], [128, 32], [128], [128]]
WEIGHT_BYTES = [8192, 16384, 512, 512]
LSTM_RESERVE, LSTM_WORKSPACE = 4 * 80 * 6 * 32, 4 * 80 * 4 * 32


def an_lstm(tmp_path: Path, *, dropout: str = "0.", element: str = "float", has_values: bool = True) -> RecordedJob:
    """Batch first, as oneDNN computes it; the model goes on with its output."""
    values = ["", "", "", "True", "1", dropout, "True", "False", "True"] if has_values else []
    layer = [("y", OUT), ("h", STATE), ("c", STATE), ("kept", 99999)]
    computed = Span("aten::mkldnn_rnn_layer", layer, [[10, 8, 16]], sequence=1, element=element)
    lstm = Span("aten::lstm", [("copy", X), computed], [[8, 10, 16], [[1, 8, 32]] * 2, WEIGHTS], values=values)
    gradients = [(f"d{at}", num_bytes) for at, num_bytes in enumerate(WEIGHT_BYTES)]
    inner = Span("MkldnnRnnLayerBackward0", [("dx", X), *gradients, "dx", "kept"], [[10, 8, 32]])
    return job_of(
        tmp_path,
        Span("aten::zeros", [("hx", STATE)]),
        Span("aten::randn", [("x", X)]),
        lstm,
        "h",
        "c",
        Span("aten::mul", [("dy", OUT)], sequence=2),
        backward("MulBackward0", 2),
        backward("MkldnnRnnLayerBackward0", 1, inner, "dy", "y", "copy"),
        *(accumulate(*shape) for shape in WEIGHTS),
        optimizer("SGD"),
        *(name for name, _ in gradients),
    )


def test_a_recurrent_net_is_one_call_of_cudnn(tmp_path: Path) -> None:
    """What oneDNN keeps goes, cuDNN's workspaces and reserve come; so do copies of what is batch first."""
    job = an_lstm(tmp_path)
    blocks = recurrent_calls.rewrite(job, CARD)
    assert 99999 not in sizes(blocks)
    forward = [b for b in blocks if b.operator is not None and job.operators[b.operator].name == "aten::lstm"]
    assert sizes(tuple(b for b in forward if b.category == "workspace")) == [LSTM_WORKSPACE] * 3
    kept = [b for b in forward if b.category == "activation"]
    assert sizes(tuple(kept)) == sorted([STATE, STATE, OUT, LSTM_RESERVE])
    others = [b for b in forward if b.category == "temporary"]
    assert sizes(tuple(others)) == sorted([X] * 3 + [OUT] + [X] + [STATE] * 4)
    node = next(o for o in job.operators if o.name.endswith(": MkldnnRnnLayerBackward0"))
    (died,) = {b.died for b in kept if b.num_bytes in (OUT, LSTM_RESERVE)}
    assert before(node.end) < died < node.end
    assert all(b.died < died for b in forward if before(node.end) < b.born and b.category != "gradient")


def test_the_weights_of_a_recurrent_net_and_their_gradients_are_one_buffer_each(tmp_path: Path) -> None:
    job = an_lstm(tmp_path)
    job = replace(job, blocks=tuple(sorted(passes.add_parameters(job, CARD), key=lambda block: block.born)))
    blocks = recurrent_calls.rewrite(job, CARD)
    whole = [block for block in blocks if block.num_bytes == sum(WEIGHT_BYTES)]
    assert sorted(block.category for block in whole) == ["gradient", "parameter"]
    parts = [block for block in blocks if block.num_bytes in WEIGHT_BYTES and block.category != "temporary"]
    (buffer,) = [block for block in whole if block.category == "parameter"]
    assert len(parts) == 4
    assert all(part.born < buffer.born < part.died < START for part in parts)


def test_products_inside_a_recurrent_net_are_not_cublas_ones(tmp_path: Path) -> None:
    job = an_lstm(tmp_path)
    assert [call.function for call in library_calls(job, CARD)] == ["cudnnRNNForward"]
    assert not kernel_memory.unknown_operators(job, CARD)


def test_dropout_between_the_layers_of_a_recurrent_net_has_random_states(tmp_path: Path) -> None:
    blocks = recurrent_calls.rewrite(an_lstm(tmp_path, dropout="0.10000000000000001"), CARD)
    assert [b.num_bytes for b in blocks if b.died == NEVER and b.category == "workspace"] == [28 * 1536 * 16]


@pytest.mark.parametrize("unlike", [{"element": "c10::BFloat16"}, {"has_values": False}])
def test_a_recurrent_net_that_is_not_understood_stays_as_the_cpu_had_it_and_is_said(
    unlike: dict[str, Any], tmp_path: Path
) -> None:
    """Under autocast the parts have another type."""
    job = an_lstm(tmp_path, **unlike)
    assert recurrent_calls.rewrite(job, CARD) == job.blocks
    assert kernel_memory.unknown_operators(job, CARD) == {"aten::lstm": 1}


# --- moments ----------------------------------------------------------------------------------------------------------


def test_what_a_pass_adds_lies_between_two_ticks_and_what_another_adds_right_after_it() -> None:
    first, second = before((8,), 1), before((8,), 2)
    assert (7,) < first < after(first, 1) < after(first, 1, 5) < second < (8,)
    assert after((7,), 3) < (8,)
    assert before(BEFORE, 0) < before(BEFORE, 999) < BEFORE < START < NEVER


def test_any_number_of_temporaries_of_an_operator_live_until_all_of_them_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With places in thousandths of a tick the 202nd would die before it is born."""
    monkeypatch.setitem(kernel_memory.TEMPORARIES, "aten::many", lambda operator, card: tuple(range(1, 1001)))
    job = job_of(tmp_path, ("x", 8), Span("aten::many", shapes=[[4]]))
    taken = [block for block in passes.add_kernel_temporaries(job, CARD) if block not in job.blocks]
    (end,) = [operator.end for operator in job.operators]
    assert [block.num_bytes for block in sorted(taken, key=lambda block: block.born)] == list(range(1, 1001))
    assert max(block.born for block in taken) < min(block.died for block in taken)
    assert all(before(end) < block.born < block.died < end for block in taken)


# --- all passes -------------------------------------------------------------------------------------------------------


def test_every_pass_is_pure_and_keeps_births_before_deaths(tmp_path: Path) -> None:
    job = job_of(tmp_path, *a_step(0), *a_step(1))
    before = job.blocks
    done, results = cpu.apply(job, CARD, with_peaks=True)
    assert job.blocks == before
    assert all(block.born < block.died for block in done.blocks)
    assert [result.name for result in results] == ["recorded", *(each.name for each in cpu.PASSES)]


# --- simulation -------------------------------------------------------------------------------------------------------


def test_the_trace_tells_steps_operators_and_the_engine(tmp_path: Path) -> None:
    job, _ = cpu.apply(job_of(tmp_path, *a_step(0), *a_step(1)), CARD)
    trace = simulate(job, CARD.gpu)
    estimate = estimate_of(trace)
    assert estimate.engine == "cpu"
    assert len(estimate.steps) == 2
    assert estimate.peak.allocated_bytes == max(step.peak_allocated_bytes for step in estimate.steps)
    assert "aten::addmm" in {trace.origin(number).operator for number in trace.memory.origin}


def test_an_import_keeps_what_the_analysis_found_of_each_block(tmp_path: Path) -> None:
    """Guessed anew from a trace without spans and labels, all of it was temporary."""
    job, _ = cpu.apply(job_of(tmp_path, *a_step(0), *a_step(1)), CARD)
    attribution = estimate_of(simulate(job, CARD.gpu)).attribution
    assert attribution is not None
    found = sorted((block.requested_bytes, block.category) for block in attribution.blocks)
    assert found == sorted((block.num_bytes, block.category) for block in job.blocks)
    assert {span.phase for span in attribution.spans} >= {"forward", "backward", "optimizer"}
    steps = {block.step for block in attribution.blocks if block.phase == "backward"}
    assert steps == {0, 1}
    assert {block.operator for block in attribution.blocks if block.phase == "backward"} == {"aten::mm"}


def test_what_the_backward_pass_takes_shows_its_forward_operator(tmp_path: Path) -> None:
    trace = simulate(job_of(tmp_path, *a_step()), CARD.gpu)

    def callers(number: int | None) -> list[str | None]:
        if number is None:
            return []
        origin = trace.origin(number)
        return [origin.operator, *callers(origin.caller)]

    node = "autograd::engine::evaluate_function: AddmmBackward0"
    assert ["aten::mm", node, "aten::addmm", "aten::linear"] in [callers(each) for each in trace.memory.origin]


def test_a_card_that_is_too_small_is_found_to_be_so(tmp_path: Path) -> None:
    job, _ = cpu.apply(job_of(tmp_path, *a_step()), CARD)
    gpu = gpus.find(f"{300 << 20},sm86")
    estimate = estimate_of(simulate(job, gpu, context_bytes=(300 << 20) - 4 * MIB))
    assert estimate.oom is not None
    assert (estimate.verdict, estimate.oom.phase) == ("oom", "backward")  # the first product there
    assert estimate.oom.requested_bytes == 8519680


def test_a_trace_from_before_there_were_two_engines_is_of_the_virtual_gpu(tmp_path: Path) -> None:
    job, _ = cpu.apply(job_of(tmp_path, *a_step()), CARD)
    save(simulate(job, CARD.gpu), tmp_path / "new.trace")
    with ZipFile(tmp_path / "new.trace") as new, ZipFile(tmp_path / "old.trace", "w") as old:
        for name in new.namelist():
            data = new.read(name)
            old.writestr(name, data.replace(b',"engine":"cpu"', b"") if name == "trace.json" else data)
    assert load(tmp_path / "new.trace").engine == "cpu"
    assert load(tmp_path / "old.trace").engine == "virtual"


# --- the command ------------------------------------------------------------------------------------------------------


def foretell_import(profile: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foretell", "import", str(profile), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, cpu_reference: CpuReference) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    cpu_reference.run(str(JOB), str(folder))
    return folder


@pytest.mark.parametrize("name", ["mlp-sgd", "mlp-adam", "gpt2", "resnet18", "lstm", "gru"])
def test_a_profile_gives_what_a_run_on_the_virtual_gpu_gives(
    name: str, recorded: Path, warm_runs: WarmRuns
) -> None:
    done = foretell_import(recorded / f"{name}.json.gz", "--gpu", "rtx-3060", "--json", "-")
    assert done.returncode == 0, done.stderr
    peak = json.loads(done.stdout)["peak"]
    real = warm_runs.run(JOB, name)
    assert real.code == 0, real.tail()
    assert peak["allocated_bytes"] == pytest.approx(real.peak["allocated_bytes"], rel=0.05)
    assert peak["reserved_bytes"] == pytest.approx(real.peak["reserved_bytes"], rel=0.10)
    assert peak["library_bytes"] == real.peak["library_bytes"]


def test_an_import_says_who_holds_the_memory_at_the_peak(recorded: Path) -> None:
    done = foretell_import(recorded / "mlp-adam.json.gz", "--gpu", "rtx-3060", "--json", "-")
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)["peak"]["by_category"]
    parameters = 4 * (1024 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 999 + 999)
    assert sizes["parameter"] == pytest.approx(parameters, rel=0.01)
    assert sizes["gradient"] == pytest.approx(parameters, rel=0.01)
    assert sizes["optimizer_state"] == pytest.approx(2 * parameters, rel=0.01)
    assert sizes["input"] == 256 * 1024 * 4
    assert "the script" not in done.stderr  # nobody measured it


def test_it_works_where_torch_is_not_installed(recorded: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from foretell.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["import", str(recorded / "mlp-sgd.json.gz"), "--gpu", "rtx-3060"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "FITS" in done.stdout


def test_explain_shows_every_pass_and_the_saved_trace_gives_the_same_report(recorded: Path, tmp_path: Path) -> None:
    target, first, second = tmp_path / "job.trace", tmp_path / "first.json", tmp_path / "second.json"
    words = ("--gpu", "rtx-3060", "--explain", "--trace", str(target), "--json", str(first))
    done = foretell_import(recorded / "mlp-adam.json.gz", *words)
    assert done.returncode == 0, done.stderr
    assert all(each.name in done.stdout for each in cpu.PASSES)
    assert load(target).engine == "cpu"
    command = [sys.executable, "-m", "foretell", "report", str(target), "--json", str(second)]
    subprocess.run(command, capture_output=True, check=True)
    assert json.loads(first.read_text()) == json.loads(second.read_text())


def test_out_of_memory_is_exit_code_3(recorded: Path) -> None:
    words = ("--gpu", f"{300 << 20},sm86", "--context", "280MiB", "--json", "-")
    done = foretell_import(recorded / "mlp-adam.json.gz", *words)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["verdict"] == "oom"


# --- what is no profile -----------------------------------------------------------------------------------------------


def on_cuda(made: dict[str, Any]) -> dict[str, Any]:
    for event in made["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"] |= {"Device Type": 1, "Device Id": 0, "Total Reserved": 2 * MIB}
    return made


WHOLE = document(*a_step())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not JSON at all", "is not JSON"),
        (b"\x80\x02binary", "neither JSON nor gzip"),
        (json.dumps(WHOLE).encode()[:-200], "is truncated"),
        (gzip.compress(json.dumps(WHOLE).encode())[:-40], "truncated or damaged"),
        (b'{"some": "thing"}', "without traceEvents"),
        (b'{"traceEvents": []}', "has no operators"),
        (json.dumps(document(Span("aten::mm"))).encode(), "profile_memory=True"),
        (json.dumps(document(Span("aten::mm"), ("a", 8))).replace('"Addr"', '"Place"').encode(), "damaged profile"),
    ],
)
def test_what_is_no_profile_is_said_with_what_to_do(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as error:
        cpu.read(path)
    assert str(path) in str(error.value)


def test_a_profile_of_a_gpu_is_refused_with_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(on_cuda(document(*a_step()))))
    with pytest.raises(UnsupportedError, match=r"recorded on a GPU.*2\.0 MiB"):
        cpu.read(path)


def test_a_missing_file_is_exit_code_2(tmp_path: Path) -> None:
    done = foretell_import(tmp_path / "nothing.json", "--gpu", "rtx-3060")
    assert done.returncode == 2
    assert "no such profile" in done.stderr
    assert "export_chrome_trace" in done.stderr
