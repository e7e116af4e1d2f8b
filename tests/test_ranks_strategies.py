"""Ways to split a training over ranks (tests/ranks/strategies.py): what each rank holds and calls."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import HAS_CUDA, ForetellRun, lines_of
from foretell import trace as traces
from foretell.trace import Trace
from warm_runs import WarmRuns

pytestmark = pytest.mark.skipif(not HAS_CUDA, reason="the CPU engine refuses jobs of several ranks")
SCRIPTS = Path(__file__).parent / "ranks"
MODEL, BLOCKS, STAGES = 14_902_272, 12_591_104, 27_230_208
"""Bytes of the parameters: of the model, of its four blocks, of a pipeline."""
IN_BLOCKS_SPLIT = BLOCKS - 4 * 2048
"""What tensor parallelism splits: all but the norms."""
SEND = 7
"""ncclSend among the operations of protocol/native_log.py; the next one is ncclRecv."""


@pytest.fixture
def runs(warm_runs: WarmRuns) -> WarmRuns:
    return warm_runs


def run(runs: WarmRuns, count: int, strategy: str, trace: Path, **options: Any) -> list[dict[str, int]]:
    """What each rank prints, in their order; foretell must say the same of its peaks."""
    words = (SCRIPTS / "launch.py", str(count), SCRIPTS / "strategies.py", strategy)
    found = runs.run(*words, gpu="h100-sxm", gpus_per_node=count, trace=trace, **options)
    assert found.code == 0, found.tail()
    printed = sorted((json.loads(line) for line in lines_of(found, "FOUND")), key=lambda each: each["rank"])
    assert [each["rank"] for each in printed] == list(range(count))
    assert [(each["allocated"], each["reserved"]) for each in printed] == peaks(found)
    return printed


def peaks(found: ForetellRun) -> list[tuple[int, int]]:
    by_rank = {rank: row["peak"] for row in found.result["ranks"] for rank in row["stands_for"].split(",")}
    return [(by_rank[rank]["allocated_bytes"], by_rank[rank]["reserved_bytes"]) for rank in sorted(by_rank, key=int)]


def collectives(trace: Trace) -> list[list[tuple[int, ...]]]:
    """Of each rank: the operation, count, type and number of ranks of each call; to send and to receive is the same
    here, because what the root of a scatter sends, the others receive."""
    ranks = sorted((trace, *trace.other_ranks), key=lambda each: each.rank.rank if each.rank is not None else -1)
    tables = [each.collectives for each in ranks]
    return [
        [(min(row[0], SEND), *row[1:]) for row in zip(t.operation, t.count, t.data_type, t.num_ranks, strict=True)]
        for t in tables
    ]


@pytest.mark.parametrize(
    ("count", "strategy", "parameters"),
    [
        (2, "ddp", 2 * MODEL),
        (2, "ddp static graph", 2 * MODEL),
        (2, "ddp fp16", 2 * MODEL),
        (2, "ddp powerSGD", 2 * MODEL),
        (2, "fsdp1", MODEL),
        (2, "fsdp2", MODEL),
        (4, "fsdp2", MODEL),
        (2, "fsdp2 offloaded", 0),
        (2, "fsdp2 checkpointing", MODEL),
        (2, "fsdp2 compiled", MODEL),
        (4, "hsdp", 2 * MODEL),
        (2, "distributed checkpoint", MODEL),
        (2, "tensor and sequence parallel", 2 * MODEL - IN_BLOCKS_SPLIT - 2_048_000),
        (2, "expert parallel", 2 * (2_048_000 + 263_168 + 2_048 + 2_102_272)),
        (4, "several communicators", 4 * MODEL),
        (2, "collectives in a graph", 2 * 256 * 256 * 4),
        (2, "dtensor values", 2 * 64 * 256 * 4),
    ],
)
def test_equal_ranks_of_a_strategy_call_the_same_and_hold_their_shards(
    runs: WarmRuns, tmp_path: Path, count: int, strategy: str, parameters: int
) -> None:
    trace = tmp_path / "ranks.trace"
    printed = run(runs, count, strategy, trace)
    assert sum(each["parameters"] for each in printed) == parameters
    first, *others = collectives(traces.load(trace))
    assert len(first) > 1
    assert others == [first] * (count - 1)


def test_ranks_of_context_parallelism_exchange_their_keys_in_an_order_of_their_own(
    runs: WarmRuns, tmp_path: Path
) -> None:
    trace = tmp_path / "ranks.trace"
    assert sum(each["parameters"] for each in run(runs, 2, "context parallel", trace)) == MODEL
    first, second = (sorted(row for row in rank if row[1]) for rank in collectives(traces.load(trace)))
    assert first == second


@pytest.mark.parametrize(
    ("count", "kind"),
    [(2, "gpipe"), (2, "interleaved"), (2, "zero bubble"), (2, "zero bubble, V")],
)
def test_the_stages_of_a_pipeline_send_what_their_neighbours_receive(
    runs: WarmRuns, tmp_path: Path, count: int, kind: str
) -> None:
    trace = tmp_path / "ranks.trace"
    printed = run(runs, count, kind, trace)
    assert sum(each["parameters"] for each in printed) == STAGES
    first, second = ([row[1:] for row in rank if row[0] == SEND] for rank in collectives(traces.load(trace)))
    assert len(first) > 3 * 8
    assert not Counter(first) - Counter(second)
    # The last rank of a V has two stages in a row. Torch 2.6 sends from one to the other, and back, in 3 steps of 8.
    to_itself = (Counter(second) - Counter(first)).total()
    assert to_itself == 0 or (kind == "zero bubble, V" and to_itself == 2 * 2 * 3 * 8)


def test_a_group_goes_on_without_one_of_its_ranks(runs: WarmRuns, tmp_path: Path) -> None:
    if not hasattr(importlib.import_module("torch.distributed"), "shrink_group"):
        pytest.skip("this torch cannot shrink a process group")
    run(runs, 3, "shrunk", trace := tmp_path / "ranks.trace")
    first, second, left = collectives(traces.load(trace))
    assert first == second
    assert {row[-1] for row in first} == {2}
    assert left == []


def test_the_optimizer_of_a_rank_may_be_larger_than_that_of_another(runs: WarmRuns, tmp_path: Path) -> None:
    first, second = run(runs, 2, "ddp, sharded optimizer", tmp_path / "ranks.trace")
    assert first["parameters"] + second["parameters"] == MODEL
    assert first["allocated"] != second["allocated"]


def test_ddp_compares_the_shapes_of_4000_parameters(runs: WarmRuns, tmp_path: Path) -> None:
    printed = run(runs, 2, "ddp of 4,000 tensors", tmp_path / "ranks.trace")
    assert [each["parameters"] for each in printed] == [576_000] * 2


def test_a_learned_gate_sends_all_tokens_to_the_first_expert_if_the_worst_is_assumed(
    runs: WarmRuns, tmp_path: Path
) -> None:
    balanced, worst = (
        run(runs, 2, "expert parallel", tmp_path / f"{assume}.trace", assume=assume) for assume in ("typical", "high")
    )
    assert balanced[0]["allocated"] == balanced[1]["allocated"]
    assert worst[0]["allocated"] > balanced[0]["allocated"] > worst[1]["allocated"]


def test_five_runs_of_a_pipeline_need_the_same(runs: WarmRuns, tmp_path: Path) -> None:
    """Also in reserved bytes, which follow from the order of events; threads that only watch must not change it."""
    trace = tmp_path / "ranks.trace"
    found = [(run(runs, 4, "1f1b", trace), collectives(traces.load(trace))) for _ in range(5)]
    assert found[1:] == found[:1] * 4
    stages = [each["parameters"] for each in found[0][0]]
    assert sum(stages) == STAGES
    assert stages[1] == stages[2] < stages[0] == stages[3]
