"""Jobs of several ranks: what they exchange, what each needs, and what happens if one goes wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import ForetellRun
from foretell import trace as traces
from foretell.analysis.verdict import estimate_of, estimates_of_others
from foretell.records import Estimate
from foretell.report.ranks import ranges
from warm_runs import WarmRuns

SCRIPTS = Path(__file__).parent / "ranks"


@pytest.fixture
def runs(warm_runs: WarmRuns) -> WarmRuns:
    return warm_runs


def run(
    runs: WarmRuns, count: int, script: str, *arguments: str, trace: Path | None = None, nccl_bytes: int | None = None,
    **more: str,
) -> ForetellRun:  # fmt: skip
    words = (SCRIPTS / "launch.py", str(count), SCRIPTS / f"{script}.py", *arguments)
    options = {} if nccl_bytes is None else {"nccl_bytes": nccl_bytes}
    return runs.run(*words, gpu="h100-sxm", trace=trace, environment=more, gpus_per_node=count, **options)


def test_what_ranks_exchange_is_what_gloo_exchanges(runs: WarmRuns) -> None:
    nccl, gloo = (run(runs, 3, "values", BACKEND=backend) for backend in ("nccl", "gloo"))
    said, expected = (
        sorted(line for line in each.stdout.splitlines() if line.startswith("rank ")) for each in (nccl, gloo)
    )
    assert nccl.code == 0, nccl.stdout
    assert len(said) > 80
    assert said == expected


@pytest.mark.parametrize("seed", ["1", "2"])
def test_random_collectives_give_what_numpy_says(runs: WarmRuns, seed: str) -> None:
    found = run(runs, 4, "fuzz", SEED=seed)
    assert found.code == 0, found.stdout
    assert sorted(re.findall("rank . agrees", found.stdout)) == [f"rank {rank} agrees" for rank in range(4)]


def test_the_rank_that_needs_the_most_is_the_result(runs: WarmRuns, tmp_path: Path) -> None:
    file = tmp_path / "ranks.trace"
    found = run(runs, 2, "uneven", "go on", trace=file).result
    assert {name: found["world"][name] for name in ("size", "ranks_run", "worst_rank", "gpus_per_node")} == {
        "size": 2, "ranks_run": [0, 1], "worst_rank": 1, "gpus_per_node": 2
    }  # fmt: skip
    first, second = found["ranks"]
    assert (first["stands_for"], second["stands_for"]) == ("0", "1")
    assert second["peak"]["allocated_bytes"] - first["peak"]["allocated_bytes"] == 100 << 20
    assert found["peak"]["allocated_bytes"] == second["peak"]["allocated_bytes"]
    for each in (first, second):
        (communicator,) = each["communicators"]
        assert communicator["channels"] == 24
        assert each["peak"]["library_bytes"] >= each["nccl_bytes"] == communicator["bytes"] >= 24 * 12 << 20
    again = estimate_of(traces.load(file))
    assert [each.peak.reserved_bytes for each in again.ranks] == [
        each["peak"]["reserved_bytes"] for each in (first, second)
    ]
    assert Estimate.from_json(again.to_json()).ranks == again.ranks
    (other,) = estimates_of_others(traces.load(file), again)
    assert other.world is not None
    assert other.world.worst_rank == 0
    assert other.peak == again.ranks[0].peak
    assert other.attribution is not None
    held = sum(other.attribution.blocks[number].bytes for number in other.attribution.at_peak)
    assert held == first["peak"]["allocated_bytes"]


def test_ranks_that_use_memory_alike_are_one_row(runs: WarmRuns) -> None:
    found = run(runs, 3, "uneven", "alike", nccl_bytes=777 << 20).result
    (row,) = found["ranks"]
    assert (row["stands_for"], row["nccl_bytes"]) == ("0,1,2", 777 << 20)
    assert not [cause for cause in found["causes"] if cause["name"] == "connections"]


@pytest.mark.parametrize(
    ("how", "exit_code", "message"),
    [
        ("raise", 1, r"failed on rank 1 at .*uneven\.py:\d+: ValueError: bad data"),
        ("end", 1, r"failed on rank 0 at .*uneven\.py:\d+: rank 1 has ended"),
        ("another collective", 1, r"rank . at .*different collectives: rank . (all_reduce|broadcast) of 8 bytes, rank"),
        ("wait", 1, r"wait for each other for ever: rank 0 in ncclAllReduce at .*uneven\.py:44 for rank 1; "
                    r"rank 1 in (ncclRecv at .*uneven\.py:35 for rank 0|irecv at .*uneven\.py:35)"),
    ],
)  # fmt: skip
def test_a_rank_that_goes_wrong_is_named(runs: WarmRuns, how: str, exit_code: int, message: str) -> None:
    found = run(runs, 2, "uneven", how)
    assert (found.code, found.result) == (exit_code, {})
    assert re.search(message, found.stderr), found.stderr


def test_a_time_limit_of_collectives_does_not_end_a_slow_run(runs: WarmRuns) -> None:
    found = run(runs, 2, "slow")
    assert found.code == 0, found.tail()
    assert sorted(re.findall("rank . goes on", found.stdout)) == ["rank 0 goes on", "rank 1 goes on"]


def test_a_rank_that_runs_out_of_memory_is_the_verdict(runs: WarmRuns) -> None:
    found = run(runs, 2, "uneven", "memory")
    assert found.code == 3
    assert found.result["world"]["worst_rank"] == 1
    assert [each["verdict"] for each in found.result["ranks"]] == ["fits", "oom"]
    assert found.result["oom"]["where"].endswith("uneven.py:29")


def test_numbers_of_ranks_are_shown_as_ranges() -> None:
    assert ranges([3, 0, 1, 2, 6, 8, 9]) == "0-3, 6, 8-9"
