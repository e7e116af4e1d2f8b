"""Time and utilization of a step: rules of operators, the model of kernels, the simulation of the queue, scripts."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell import gpus
from foretell import trace as traces
from foretell.analysis.verdict import estimate_of
from foretell.analysis.what_if import what_if
from foretell.errors import UsageError
from foretell.inside.capture import Capture
from foretell.inside.patches import Patches
from foretell.inside.watch.operators import Operators as RecordingOfOperators
from foretell.inside.watch.operators import lateness
from foretell.jobs import CaptureOptions
from foretell.time import chrome_trace, performance_of, work_of
from foretell.time.linking import Callers
from foretell.time.model import combine, constants, misses, seconds, tile_waste
from foretell.time.occupancy import fp32_flops, sm_active, sm_occupancy
from foretell.time.queue import Host, play, union
from foretell.time.rates import sustained_flops
from foretell.time.rules import load_of, parse
from foretell.time.work import Item, Product, Work, _add_host, _Reader
from foretell.trace import BatchMark, Captures, MemoryEvents, Operators, RecordedStep, RecurrentNets
from warm_runs import WarmRuns

A100 = gpus.find("a100-40gb")
HOST = Host(operator=1e-6, launch=4e-6, factor=1.0)
HALF = ["float16", [64, 128], "contiguous", True]
FULL = ["float32", [64, 128], "contiguous", True]


def work(*items: Item, **values: object) -> Work:
    given = {"kind": "training", "loader_us": 0.0, "has_workers": False, "wall_us": 1e4, "num_samples": None}
    return Work(items=items, num_graphs=0, **{**given, **values})  # type: ignore[arg-type]


def kernel(**values: object) -> Item:
    return Item(**{"kernel_class": "elementwise", "name": "add", "issued_us": 0, **values})  # type: ignore[arg-type]


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inputs", "num_bytes"),
    [
        ("aten::relu", [HALF], 2 * 64 * 128 * 2),
        ("aten::add", [HALF, HALF, 1], 3 * 64 * 128 * 2),
        ("aten::add_", [HALF, HALF, 1], 3 * 64 * 128 * 2),
        ("aten::add", [["float16", [64, 1], "contiguous", True], HALF, 1], 2 * 64 * 128 * 2 + 64 * 2),
        ("aten::eq", [FULL, FULL], 2 * 64 * 128 * 4 + 64 * 128),
        ("aten::copy_", [HALF, FULL, False], 64 * 128 * (2 + 4)),
        ("aten::zero_", [FULL], 64 * 128 * 4),
        ("aten::sum", [FULL, None, False, None], 64 * 128 * 4),
        ("aten::_softmax_backward_data", [FULL, FULL, 1, 6], 3 * 64 * 128 * 4),
        ("aten::native_batch_norm", [FULL, None, None, None, None, True, 0.1, 1e-5], 3 * 64 * 128 * 4),
        ("aten::native_batch_norm", [FULL, None, None, None, None, False, 0.1, 1e-5], 2 * 64 * 128 * 4),
        ("aten::_foreach_add_", [["list", FULL, FULL], ["list", FULL, FULL], 1], 3 * 2 * 64 * 128 * 4),
        ("aten::embedding", [["float32", [50000, 128], "contiguous", True], ["int64", [64], "contiguous", True]],
         64 * 8 + 2 * 64 * 128 * 4),
    ],
)  # fmt: skip
def test_bytes_of_an_operator_are_its_inputs_at_their_own_size_and_its_output(
    name: str, inputs: list[object], num_bytes: int
) -> None:
    load = load_of(parse(json.dumps([name, inputs])), ["vectorized_elementwise_kernel"])
    assert (load.bytes, load.is_known) == (num_bytes, True)


def test_an_operator_without_a_rule_is_known_only_if_its_kernels_are_elementwise() -> None:
    call = parse(json.dumps(["mine::odd", [FULL]]))
    assert load_of(call, ["at::native::vectorized_elementwise_kernel<4>"]).is_known
    assert not load_of(call, ["my_kernel"]).is_known


def test_causal_attention_computes_half_of_what_full_attention_does() -> None:
    q = ["float16", [2, 512, 8, 64], "contiguous", True]
    full, causal = (
        load_of(parse(json.dumps(["aten::_flash_attention_forward", [q, q, q, None, None, 512, 512, 0.0, flag]])), [])
        for flag in (False, True)
    )
    assert full.flops == 4.0 * 2 * 8 * 512 * 512 * 64
    assert causal.flops == full.flops / 2


def test_a_compiled_kernel_moves_its_arguments_but_of_a_table_only_what_it_is_about() -> None:
    table = ["float32", [50_000, 128], "contiguous", True]
    load = load_of(parse(json.dumps(["foretell::compiled_pointwise", [FULL, table, 64 * 128]])), ())
    assert load.bytes == 2 * 64 * 128 * 4
    assert load.is_known


def test_a_product_that_inductor_wrote_computes_as_any_other() -> None:
    a, b, c = (["float16", [*sizes], "contiguous", True] for sizes in ((64, 32), (32, 128), (64, 128)))
    load = load_of(parse(json.dumps(["foretell::compiled_template", [a, b, c]])), ("triton_tem_fused_mm_0",))
    assert load.flops == pytest.approx(2 * 64 * 32 * 128)


def test_a_kernel_that_the_script_brings_is_not_known() -> None:
    load = load_of(parse(json.dumps(["foretell::triton_kernel", [FULL, FULL]])), ("add_kernel",))
    assert load.bytes == 2 * 64 * 128 * 4
    assert not load.is_known


def test_interpolating_contiguous_images_takes_an_access_to_memory_for_each_channel() -> None:
    def interpolated(layout: str) -> float:
        image = ["float16", [256, 512, 7, 7], layout, True]
        load = load_of(parse(json.dumps(["aten::upsample_bilinear2d", [image, None, False, 2.0, 2.0]])), ())
        item = Item(issued_us=0, kernel_class=load.kernel_class, bytes=load.bytes, rounds=load.rounds)
        return seconds(item, A100, constants())

    assert interpolated("contiguous") > 10 * interpolated("channels_last")


@pytest.mark.parametrize("name", ["nll_loss_forward", "nll_loss_backward"])
def test_a_loss_touches_one_score_of_each_row_however_many_classes_there_are(name: str) -> None:
    def loss(rows: int, classes: int) -> float:
        scores, target = ["float32", [rows, classes], "contiguous", True], ["int64", [rows], "contiguous", True]
        gradient = [["float32", [], "contiguous", True]] if name == "nll_loss_backward" else []
        load = load_of(parse(json.dumps([f"aten::{name}", [*gradient, scores, target]])), ())
        item = Item(
            issued_us=0, kernel_class=load.kernel_class, bytes=load.bytes, rounds=load.rounds, blocks=1, threads=256
        )  # fmt: skip
        return seconds(item, A100, constants())

    assert loss(4096, 50257) == loss(4096, 10)
    assert loss(4096, 50257) < 50e-6
    assert loss(1 << 20, 10) > 10 * loss(4096, 10)


def test_an_operator_without_the_tensors_of_its_rule_is_unknown() -> None:
    on_cpu = ["float32", [64, 128], "contiguous", False]
    for name in ("native_batch_norm", "convolution_backward", "native_dropout", "embedding_dense_backward"):
        assert not load_of(parse(json.dumps([f"aten::{name}", [on_cpu]])), []).is_known


def test_a_profiler_that_fails_leaves_the_script_alone() -> None:
    failures: list[str] = []
    names = ("after_step", "before_evaluation", "on_phase", "on_batch", "before_end")
    hooks: dict[str, list[Any]] = {name: [] for name in names}
    capture: Any = SimpleNamespace(
        **hooks, num_steps=1, num_graph_steps=0, is_capturing_graph=False, patches=Patches(),
        imports=SimpleNamespace(when_imported=lambda name, call: None),
        hook_failed=lambda name, error: failures.append(name),
    )  # fmt: skip
    capture.guarded = lambda name, call: Capture.guarded(capture, name, call)
    RecordingOfOperators(capture).install(SimpleNamespace())  # a torch without a profiler
    for call in capture.after_step:
        call()
    assert failures == ["CUDA graphs", "ranges of the profiler", "the operators of a step"]


def test_a_clock_that_is_ahead_is_set_back_and_one_that_agrees_is_left() -> None:
    marks = [(at, at + 10, at + 20) for at in (0, 100, 200, 1_000_000, 1_000_100, 1_000_200)]
    agreeing = [(at + 2, at + 18) for at, _, _ in marks]
    assert lateness(agreeing, marks)(500_000) == 0
    ahead = [(round(1.001 * begin) + 5000, round(1.001 * end) + 5000) for begin, end in agreeing]
    late = lateness(ahead, marks)
    assert [505_500 - late(505_500), 5000 - late(5000)] == pytest.approx([500_000, 0], abs=20)
    assert lateness(ahead[:-1], marks)(500_000) == 0  # one was not seen


# --- the model --------------------------------------------------------------------------------------------------------


def test_an_empty_product_takes_no_time() -> None:
    assert tile_waste(Product(m=0, n=8, k=8, batch=1), 108, is_tensor=True) == 0


def test_a_piece_of_work_takes_at_least_the_longer_of_computing_and_moving() -> None:
    assert combine(3.0, 1.0) >= 3.0
    assert combine(1.0, 1.0) == pytest.approx(2 ** (1 / 3))


def test_constants_are_shares_inside_physical_limits() -> None:
    assert all(0.1 <= share <= 1.05 for share in constants().bandwidth.values())
    assert all(0.05 <= share <= 1.16 for share in constants().rate.values())


def test_small_products_lose_by_their_tiles_and_odd_sizes_on_tensor_cores() -> None:
    large = Product(m=8192, n=8192, k=8192, batch=1)
    small = Product(m=128, n=128, k=512, batch=1)
    assert tile_waste(large, 108, is_tensor=True) == pytest.approx(1.0, abs=0.01)
    assert tile_waste(small, 108, is_tensor=True) > 5
    odd = Product(m=8192, n=8191, k=8192, batch=1)
    assert tile_waste(odd, 108, is_tensor=True) > 1.25 * tile_waste(odd, 108, is_tensor=False)


def test_bytes_that_fit_into_l2_partly_miss_dram() -> None:
    assert misses(1 << 34, A100.l2_bytes) == pytest.approx(1.0, abs=0.01)
    assert misses(1 << 20, A100.l2_bytes) < 0.6


@pytest.mark.parametrize(("card", "share"), [("l4", 0.30), ("t4", 0.41), ("a100-pcie-40gb", 0.76), ("h100-sxm", 0.74)])
def test_fp32_rates_are_limited_by_power_as_they_were_measured(card: str, share: float) -> None:
    gpu = gpus.find(card)
    assert sustained_flops(gpu, "fp32") / gpu.fp32_flops == pytest.approx(share, abs=0.04)


def test_tf32_runs_at_half_the_rate_of_half_precision_and_not_before_ampere() -> None:
    assert sustained_flops(A100, "tf32") == sustained_flops(A100, "tensor") / 2
    v100 = gpus.find("v100")
    assert sustained_flops(v100, "tf32") == sustained_flops(v100, "fp32")


def test_more_bytes_take_longer_and_a_faster_card_less() -> None:
    item = kernel(bytes=1e9)
    on_a100 = seconds(item, A100, constants())
    assert seconds(kernel(bytes=2e9), A100, constants()) > 1.9 * on_a100
    assert on_a100 < seconds(item, gpus.find("t4"), constants())


# --- occupancy --------------------------------------------------------------------------------------------------------


def test_few_blocks_leave_sms_idle() -> None:
    assert sm_active(kernel(blocks=27, threads=128), A100) == 27 / 108
    assert sm_active(kernel(blocks=5000, threads=128), A100) == 1.0


def test_shared_memory_limits_how_full_an_sm_is() -> None:
    free = sm_occupancy(kernel(blocks=5000, threads=128), A100)
    taken = sm_occupancy(kernel(blocks=5000, threads=128, shared_bytes=80_000), A100)
    assert taken == 2 * 128 / 2048 < free


def test_registers_limit_how_full_an_sm_is() -> None:
    few, many = (sm_occupancy(kernel(blocks=5000, threads=256, registers=number), A100) for number in (32, 129))
    assert (few, many) == (1.0, 1 * 256 / 2048)  # 129 registers take as much as 136


def test_small_products_in_fp32_fill_an_sm_with_small_tiles() -> None:
    """As an A100's cuBLAS does: four blocks on each SM, if the sum can be split so often."""
    small = kernel(kernel_class="gemm", product=Product(m=256, n=256, k=1024, batch=1))
    assert sm_active(small, A100) == 1.0
    assert sm_occupancy(small, A100) == pytest.approx(4 * 128 / 2048)
    short = kernel(kernel_class="gemm", product=Product(m=64, n=64, k=64, batch=1))
    assert sm_active(short, A100) == 4 / 108


# --- the queue --------------------------------------------------------------------------------------------------------


def test_a_step_of_long_kernels_takes_as_long_as_they_do() -> None:
    items = [kernel(num_operators=3) for _ in range(10)]
    played = play(work(*items), [1e-3] * 10, HOST)
    assert played.period == pytest.approx(10e-3)


def test_a_step_of_short_kernels_takes_as_long_as_the_host_does() -> None:
    items = [kernel(num_operators=3) for _ in range(10)]
    played = play(work(*items), [1e-7] * 10, HOST)
    assert played.period == pytest.approx(10 * (3e-6 + 4e-6), rel=0.05)


def test_the_host_issues_a_graph_at_once() -> None:
    kernels = [kernel(num_operators=1) for _ in range(100)]
    graph = [kernel(is_replayed=number > 0) for number in range(100)]
    one_by_one, at_once = (play(work(*items), [1e-6] * 100, HOST).period for items in (kernels, graph))
    assert at_once == pytest.approx(100e-6, rel=0.1)
    assert one_by_one > 4 * at_once


def test_a_synchronization_adds_the_time_of_host_and_gpu() -> None:
    items = [kernel(num_operators=0, host_us=1000.0), kernel(kind="wait_host", launches=0, stream=-1)]
    played = play(work(*items), [2e-3, 0.0], HOST)
    assert played.period == pytest.approx(3e-3, rel=0.01)


def test_two_streams_overlap_unless_one_waits_for_an_event_of_the_other() -> None:
    first, second = kernel(stream=0), kernel(stream=1)
    record = kernel(kind="record_event", stream=0, event=7, launches=0)
    wait = kernel(kind="wait_event", stream=1, event=7, launches=0)
    back = (kernel(kind="record_event", stream=1, event=8, launches=0),
            kernel(kind="wait_event", stream=0, event=8, launches=0))  # fmt: skip
    apart = play(work(first, second, *back), [1e-3, 1e-3, 0, 0], HOST)
    chained = play(work(first, record, wait, second, *back), [1e-3, 0, 0, 1e-3, 0, 0], HOST)
    assert apart.period == pytest.approx(1e-3, rel=0.02)
    assert chained.period == pytest.approx(2e-3, rel=0.02)


def test_time_in_which_several_spans_run_counts_once() -> None:
    assert union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]) == 4.0


# --- bound by what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "bound"),
    [
        (work(kernel(bytes=1e10, num_operators=5)), "gpu"),
        (work(*[kernel(bytes=1e3, num_operators=5) for _ in range(50)]), "host"),
        (work(kernel(bytes=1e6, host_us=50_000.0), loader_us=50_000.0), "loader"),
        (work(kernel(bytes=1e6), loader_us=9_000.0, has_workers=True), "loader"),
        (work(kernel(bytes=1e6), loader_us=90.0, has_workers=True, worker_us=20_000.0), "loader"),
        (work(kernel(bytes=1e10), loader_us=9_000.0, has_workers=True, worker_us=2_000.0), "gpu"),
        (work(kernel(kind="copy", kernel_class="copy", bytes=1e9, is_blocking=True), kernel(bytes=1e6)), "copies"),
    ],
)
def test_a_step_is_bound_by_what_fills_it(made: Work, bound: str) -> None:
    found = performance_of(made, A100)
    assert found.time.bound == bound
    assert found.time.step_low_ms <= found.time.step_ms <= found.time.step_high_ms


def test_a_slower_host_makes_a_host_bound_step_longer_and_leaves_a_gpu_bound_one() -> None:
    small = work(*[kernel(bytes=1e3, num_operators=20) for _ in range(50)])
    large = work(kernel(bytes=1e10, num_operators=20))
    one, four = (performance_of(small, A100, host_factor=factor).time.step_ms for factor in (1.0, 4.0))
    assert four > 2 * one
    first, second = (performance_of(large, A100, host_factor=factor).time.step_ms for factor in (1.0, 4.0))
    assert first == pytest.approx(second, rel=0.01)


def test_an_unknown_operator_counts_in_unknown_share_and_widens_the_interval() -> None:
    known = performance_of(work(kernel(bytes=1e9), kernel(bytes=1e9)), A100)
    unknown = performance_of(work(kernel(bytes=1e9), kernel(bytes=1e9, is_known=False)), A100)
    assert (known.unknown_share, unknown.unknown_share) == (0.0, pytest.approx(0.5))
    assert unknown.time.step_high_ms > known.time.step_high_ms


def test_a_card_without_watts_says_so() -> None:
    found = performance_of(work(kernel(bytes=1e9)), gpus.find("24GiB,sm89"))
    assert found.joules is None
    assert "power" in found.caveats[0]


def test_buckets_of_the_timeline_add_up_to_the_scalars() -> None:
    found = performance_of(work(kernel(bytes=1e9, host_us=2000.0), kernel(bytes=1e8), kernel(bytes=1e3)), A100)
    mean = sum(found.timeline.gract) / len(found.timeline.gract)
    assert mean == pytest.approx(found.activity.gpu, abs=0.02)
    assert found.timeline.bucket_ms * len(found.timeline.gract) == pytest.approx(found.time.step_ms)


def test_kernel_classes_of_the_timeline_add_up_to_what_runs_also_on_several_streams() -> None:
    made = work(
        kernel(bytes=1e9, kernel_class="conv_nhwc"), kernel(bytes=1e9, kernel_class="reduction", stream=1),
        kernel(kind="copy", kernel_class="copy", bytes=1e8), kernel(kind="wait_host", stream=-1),
    )  # fmt: skip
    found = performance_of(made, A100).timeline
    assert {name for name, _ in found.kernels} == {"conv", "reduction", "copy"}
    stacked = [sum(shares) for shares in zip(*(shares for _, shares in found.kernels), strict=True)]
    assert sum(stacked) == pytest.approx(100, abs=2)
    assert sum(found.gract) < 50  # copies are shown, but keep no graphics engine busy
    found = performance_of(replace(made, items=made.items[:2]), A100).timeline
    stacked = [sum(shares) for shares in zip(*(shares for _, shares in found.kernels), strict=True)]
    assert stacked == pytest.approx(found.gract)


def test_the_longest_waits_of_the_gpu_say_what_ends_them() -> None:
    made = work(
        kernel(bytes=1e9, host_us=2000.0, name="aten::embedding", phase="forward"),
        kernel(kind="wait_host"),
        kernel(bytes=1e9, host_us=9000.0, name="aten::mm", phase="backward"),
        kernel(kind="wait_host"),
    )
    waits = performance_of(made, A100, host_factor=1.0).timeline.waits
    assert [(wait.before, wait.phase) for wait in waits] == [("aten::mm", "backward"), ("aten::embedding", "forward")]
    assert waits[0].ms == pytest.approx(9.0, abs=0.1)
    assert waits[1].begin_ms == pytest.approx(0.0, abs=0.1)
    assert performance_of(work(kernel(bytes=1e10)), A100).timeline.waits == ()


def test_copies_do_not_make_the_gpu_count_as_busy() -> None:
    copying = Item(kind="copy", kernel_class="copy", name="copy to device", issued_us=0, bytes=1e9, is_blocking=True)
    found = performance_of(work(copying, kernel(bytes=1e9)), A100)
    kernels = performance_of(work(kernel(bytes=1e9)), A100).time.gpu_busy_ms
    assert found.activity.gpu == pytest.approx(kernels / found.time.step_ms)


def test_short_kernels_leave_sms_idle_while_they_start() -> None:
    one, many = (work(*[kernel(bytes=1e9 / count, num_operators=0) for _ in range(count)]) for count in (1, 300))
    first, second = (performance_of(each, A100).activity for each in (one, many))
    assert second.smact / second.gract < 0.8 * first.smact / first.gract


def test_plain_lanes_compute_beside_the_edges_of_products_and_in_elementwise_kernels() -> None:
    product = Product(m=100, n=100, k=64, batch=1)
    flops = 2.0 * 100 * 100 * 64
    assert fp32_flops(kernel(product=product, flops=flops), A100) == 2.0 * 128 * 128 * 64
    assert fp32_flops(kernel(product=product, flops=flops, unit="tensor"), A100) == 0.0
    assert fp32_flops(kernel(bytes=4e6), A100) > 1e6


def test_time_of_a_loader_is_what_loading_takes_without_hooks() -> None:
    slow = Operators(
        begin_us=array("q", [0, 10, 1000]), end_us=array("q", [900, 20, 1010]), signature=array("i", [0, 1, 1]),
        parent=array("i", [-1, 0, -1]), thread=array("B", [0, 0, 0]),
    )
    step = RecordedStep(kind="training", step=2, begin_us=0, end_us=1010, cpu_us=1010, loop_us=740.0, loading_us=900)
    shape = BatchMark(loader=0, index=1, step=2, shape=0, num_elements=8, num_samples=8)
    trace = SimpleNamespace(
        operators=slow, signatures=('["enumerate(DataLoader)#next",[]]', '["aten::select",[]]'),
        batches=(replace(shape, step=1, took_us=300), shape, replace(shape, step=3, took_us=200)), captures=Captures(),
    )
    found = [Item(issued_us=1005)]
    _add_host(found, trace, step, 1.0)  # type: ignore[arg-type]
    assert found[0].host_us == 200.0
    assert found[0].num_operators == 1  # the one inside the loader is in its time


@pytest.mark.parametrize(("delay_us", "own_us"), [(0, 2500.0), (5000, 500.0), (9000, 0.0)])
def test_a_gap_between_operators_is_work_only_as_far_as_the_process_ran(delay_us: int, own_us: float) -> None:
    operators = Operators(
        begin_us=array("q", [0, 4000]), end_us=array("q", [0, 10000]), signature=array("i", [0, 0]),
        parent=array("i", [-1, -1]), thread=array("B", [0, 0]),
    )
    step = RecordedStep(
        kind="training", step=2, begin_us=0, end_us=10000, cpu_us=10**6, loop_us=740.0, delay_us=delay_us
    )
    signatures = ('["aten::relu",[["float32",[8],"contiguous",true]]]',)
    trace = SimpleNamespace(operators=operators, signatures=signatures, batches=(), captures=Captures())
    found = [Item(issued_us=5000)]
    _add_host(found, trace, step, 1.0)  # type: ignore[arg-type]
    assert found[0].host_us == own_us


def test_a_recurrent_net_computes_its_inputs_at_once_and_its_hidden_states_step_by_step() -> None:
    table = RecurrentNets()
    for direction in (0, 1):  # forward, weights
        row = {
            "time_us": 5, "num_steps": 35, "batch_size": 20, "input_size": 100, "hidden_size": 64, "num_layers": 2,
            "num_directions": 1, "cell": 2, "data_type": 0, "direction": direction,
        }  # fmt: skip
        for name, value in row.items():
            getattr(table, name).append(value)
    step = RecordedStep(kind="training", step=2, begin_us=0, end_us=10, cpu_us=10, loop_us=740.0)
    tables = {"operators": Operators(), "captures": Captures(), "memory": MemoryEvents(), "recurrent": table}
    facts = {"engine": "virtual", "recorded_step": step, "kernel_code": (), "busiest_device": 0, "signatures": ()}
    trace = SimpleNamespace(**facts, **tables)
    items = list(_Reader(trace)._recurrent())  # type: ignore[arg-type]
    assert [(item.kernel_class, item.launches, item.product) for item in items] == [
        ("gemm", 1, Product(m=35 * 20, n=4 * 64, k=100, batch=1)),
        ("gemm", 1, Product(m=35 * 20, n=4 * 64, k=64, batch=1)),
        ("recurrent", 35 + 1, Product(m=20, n=4 * 64, k=64, batch=2)),
        ("gemm", 1, Product(m=4 * 64, n=100 + 64, k=35 * 20, batch=1)),
        ("gemm", 1, Product(m=4 * 64, n=64 + 64, k=35 * 20, batch=1)),
    ]
    forward, weights = items[:3], items[3:]
    assert sum(item.flops for item in forward) == sum(item.flops for item in weights)


def test_a_host_factor_is_a_positive_number() -> None:
    with pytest.raises(UsageError, match="--host-factor 0"):
        CaptureOptions(host_factor=0.0)


# --- records and operators --------------------------------------------------------------------------------------------


def test_a_record_belongs_to_the_innermost_operator_of_the_thread_that_began_last() -> None:
    operators = Operators()
    for begin, end, parent, thread in ((0, 100, -1, 0), (10, 30, 0, 0), (40, 60, 0, 0), (45, 50, -1, 1)):
        for column, value in zip(
            (operators.begin_us, operators.end_us, operators.signature, operators.parent, operators.thread),
            (begin, end, 0, parent, thread),
            strict=True,
        ):
            column.append(value)
    callers = Callers(operators)
    assert [callers.at(time_us) for time_us in (5, 20, 35, 47, 55, 200)] == [0, 1, 0, 3, 2, -1]


TRAINING = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10))
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.zeros(64, dtype=torch.long))
for x, y in torch.utils.data.DataLoader(data, batch_size=16):
    with torch.autocast("cuda"):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated())
"""
INFERENCE = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
with torch.inference_mode():
    for _ in range(3):
        model(torch.zeros(64, 1024, device="cuda"))
"""

GRAPHS = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(20))).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(64, 128, device="cuda")

def step():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

if {is_captured}:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    step = graph.replay
for _ in range(5):
    step()
"""
COMPILED = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
call = torch.compile(lambda x: torch.nn.functional.gelu(model(x)).sum(-1)) if {is_compiled} else (
    lambda x: torch.nn.functional.gelu(model(x)).sum(-1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    call(torch.ones(8192, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def runs(warm_runs: WarmRuns) -> WarmRuns:
    return warm_runs


def test_a_training_script_has_a_time_and_the_same_memory_as_without(runs: WarmRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    plain = runs.run(script, gpu="a100-40gb")
    timed = runs.run(script, gpu="a100-40gb", time=True, trace=tmp_path / "train.trace")
    assert plain.stdout.splitlines()[-4:] == timed.stdout.splitlines()[-4:]
    assert "time" not in plain.result
    assert {**plain.result["peak"], "blocks": []} == {**timed.result["peak"], "blocks": []}
    time, kernels = timed.result["time"], timed.result["kernels"]
    assert time["kind"] == "training"
    assert 0 < time["step_low_ms"] <= time["step_ms"] <= time["step_high_ms"]
    assert {"conv", "batch_norm", "elementwise", "gemm"} <= {each["class"] for each in kernels}
    assert {"forward", "backward", "optimizer"} <= set(time["phases"])
    assert timed.result["unknown_share"] < 0.05
    assert len(timed.result["timeline"]["gract"]) == 100

    optimizer = next(each for each in kernels if each["class"] == "foreach")
    assert optimizer["module"] is None
    # A range that is open at the end of a recording would write into what the profiler has freed.
    recorded = [json.loads(text)[0] for text in traces.load(tmp_path / "train.trace").signatures]
    assert not any(name.startswith("Optimizer.step") for name in recorded)
    found = work_of(traces.load(tmp_path / "train.trace"))
    assert found is not None
    assert found.num_samples == 16
    copies = {(item.name, item.bytes) for item in found.items if item.kind == "copy"}
    assert {("copy to device", 16 * 3 * 32 * 32 * 4), ("copy to device", 16 * 8), ("copy to host", 4)} <= copies
    assert any(item.kind == "wait_host" for item in found.items)
    forward = next(item for item in found.items if item.kernel_class == "conv")
    assert forward.flops == 2.0 * 16 * 32 * 30 * 30 * 27
    assert forward.product == Product(m=16 * 30 * 30, n=32, k=27, batch=1)

    trace = traces.load(tmp_path / "train.trace")
    assert {each.name for each in trace.kernel_code} == set(trace.kernels.name)
    assert all(item.registers for item in found.items if item.blocks)

    on_other_card = estimate_of(what_if(traces.load(tmp_path / "train.trace"), gpu=gpus.find("t4")).trace).performance
    assert on_other_card is not None
    assert on_other_card.time.gpu_busy_ms > time["gpu_busy_ms"]

    events = json.loads(chrome_trace(traces.load(tmp_path / "train.trace"), A100))["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    assert {"forward", "backward", "optimizer", "convolution"} <= {each["name"] for each in slices}
    assert all(each["ts"] >= 0 and each["dur"] >= 0 for each in slices)


def test_a_script_that_only_calls_a_model_has_the_time_of_a_pass(runs: WarmRuns, tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(INFERENCE)
    found = runs.run(script, gpu="a100-40gb", time=True).result
    assert found["time"]["kind"] == "inference"
    assert [each["class"] for each in found["kernels"]][:2] in (["gemm", "elementwise"], ["elementwise", "gemm"])


def test_a_step_in_a_graph_has_the_same_work_and_less_of_the_host(runs: WarmRuns, tmp_path: Path) -> None:
    found = []
    for is_captured in (False, True):
        script = tmp_path / f"{is_captured}.py"
        script.write_text(GRAPHS.format(is_captured=is_captured))
        found.append(runs.run(script, gpu="a100-40gb", time=True).result)
    eager, captured = found
    assert captured["time"]["gpu_busy_ms"] == pytest.approx(eager["time"]["gpu_busy_ms"], rel=0.1)
    assert captured["time"]["host_ms"] < 0.2 * eager["time"]["host_ms"]
    assert (eager["time"]["bound"], captured["time"]["bound"]) == ("host", "gpu")
    assert {"forward", "backward", "optimizer"} <= set(captured["time"]["phases"])


def test_a_compiled_step_moves_fewer_bytes_than_one_that_is_not(runs: WarmRuns, tmp_path: Path) -> None:
    found = []
    for is_compiled in (False, True):
        script = tmp_path / f"{is_compiled}.py"
        script.write_text(COMPILED.format(is_compiled=is_compiled))
        found.append(runs.run(script, gpu="a100-40gb", time=True).result)
    eager, compiled = found
    classes = {each["class"]: each for each in compiled["kernels"]}
    assert {"gemm", "fused"} <= set(classes)
    assert compiled["unknown_share"] < 0.05
    assert 0.4 * eager["time"]["gpu_busy_ms"] < compiled["time"]["gpu_busy_ms"] < eager["time"]["gpu_busy_ms"]
