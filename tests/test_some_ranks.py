"""Some ranks of many: what they need, and what they find where the others would be, is what it is if all run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import HAS_CUDA, ForetellRun
from foretell import gpus
from foretell import trace as traces
from foretell.analysis.ranks import roles, stand_for_others
from foretell.jobs import Job
from foretell.plan.scale import scale
from foretell.records import PeakMemory, RankEstimate
from foretell.trace.records import CommunicatorUse, RankMark
from warm_runs import WarmRuns

SCRIPTS = Path(__file__).parent / "ranks"
pytestmark = pytest.mark.skipif(not HAS_CUDA, reason="the CPU engine runs no job of several ranks")
UINT8 = 1
"""Of ncclDataType_t: bytes of pickled objects, for one."""


@pytest.fixture
def runs(warm_runs: WarmRuns) -> WarmRuns:
    return warm_runs


def run(runs: WarmRuns, ranks: str, size: int, *words: str, trace: Path | None = None) -> ForetellRun:
    environment = {} if ranks == "all" else {"IN_PART": "1"}
    return runs.run(
        SCRIPTS / f"{words[0]}.py", *words[1:], gpu="h100-sxm", trace=trace, world_size=size, ranks=ranks,
        environment=environment,
    )  # fmt: skip


def peaks(found: ForetellRun) -> dict[int, str]:
    """As the ranks themselves say."""
    return {int(rank): said for rank, said in re.findall(r"rank (\d+): (\d+ allocated, \d+ reserved)", found.stdout)}


def collectives(path: Path) -> dict[int, list[tuple[int, ...]]]:
    trace = traces.load(path)
    found = {}
    for each in (trace, *trace.other_ranks):
        assert each.rank is not None
        calls = each.collectives
        found[each.rank.rank] = list(
            zip(calls.operation, calls.num_ranks, calls.count, calls.data_type, calls.bytes, strict=True)
        )
    return found


SOME = {2: ["1"], 4: ["0", "3", "1-2"]}
"""Of so many ranks these are run, each time alone."""
JOBS = [
    *(("parallel", name) for name in ("ddp", "fsdp1", "fsdp2", "hsdp", "tp", "pipeline")),
    *(("strategies", name) for name in (
        "ddp", "ddp static graph", "ddp fp16", "ddp powerSGD", "ddp, sharded optimizer", "ddp of 4,000 tensors",
        "fsdp1", "fsdp2", "fsdp2 offloaded", "fsdp2 checkpointing", "fsdp2 compiled", "hsdp", "distributed checkpoint",
        "tensor and sequence parallel", "tensor parallel compiled", "context parallel", "expert parallel", "gpipe",
        "1f1b", "interleaved", "zero bubble", "zero bubble, V", "several communicators", "shrunk", "dtensor values",
        "collectives in a graph",
    )),
    *(("frameworks", *words.split()) for words in (
        "deepspeed 0", "deepspeed 1", "deepspeed 2", "deepspeed 3", "deepspeed 2 cpu", "deepspeed 3 cpu",
        "accelerate ddp", "accelerate fsdp 1", "accelerate fsdp 2", "accelerate deepspeed 2", "accelerate deepspeed 3",
        "trainer ddp", "trainer fsdp 1", "trainer fsdp 2", "trainer deepspeed 2", "trainer deepspeed 3",
        "lightning ddp", "lightning fsdp", "lightning deepspeed_stage_2", "lightning deepspeed_stage_3",
    )),
]  # fmt: skip
CHEAP = {
    *((job, size) for job in JOBS if job[0] == "parallel" for size in SOME),
    *(((("strategies", name), 2)) for name in ("context parallel", "expert parallel", "zero bubble")),
    (("strategies", "distributed checkpoint"), 4),
    *((("frameworks", *words.split()), 2) for words in (
        "deepspeed 2", "deepspeed 3 cpu", "accelerate fsdp 2", "trainer deepspeed 3", "lightning fsdp",
    )),
}  # fmt: skip
"""Always run; the others with --every-job."""


def jobs(*sizes: int) -> list[Any]:
    return [
        pytest.param(job, size, id=f"{' '.join(job)}, {size} ranks",
                     marks=() if (job, size) in CHEAP else pytest.mark.every_job)
        for job in JOBS for size in sizes
    ]  # fmt: skip


def need(job: tuple[str, ...]) -> None:
    """Skip a job of what is not installed, or not in this torch."""
    if job[0] == "frameworks":
        pytest.importorskip(job[1].replace("trainer", "transformers"))
        if "deepspeed" in " ".join(job):
            pytest.importorskip("deepspeed")
    if job == ("strategies", "shrunk") and not hasattr(importlib.import_module("torch.distributed"), "shrink_group"):
        pytest.skip("this torch cannot shrink a process group")


def alike(calls: list[tuple[int, ...]], job: tuple[str, ...]) -> list[tuple[int, ...]]:
    """What is compared of them: the objects that plan a checkpoint are longer if they describe the shards of all."""
    if job != ("strategies", "distributed checkpoint"):
        return calls
    return [(*row[:2], 0, row[3], 0) if row[3] == UINT8 else row for row in calls]


@pytest.mark.parametrize(("job", "size"), jobs(2, 4))
def test_some_ranks_need_what_they_need_if_all_run(
    runs: WarmRuns, tmp_path: Path, job: tuple[str, ...], size: int
) -> None:
    """Also the sequence of their collectives is the same."""
    need(job)
    everything = run(runs, "all", size, *job, trace=tmp_path / "all")
    expected, calls = peaks(everything), collectives(tmp_path / "all")
    assert sorted(expected) == list(range(size)), everything.tail()
    for ranks in SOME[size]:
        found = run(runs, ranks, size, *job, trace=tmp_path / ranks)
        assert {int(rank) for rank in ranks.split("-")} <= peaks(found).keys(), found.tail()
        assert peaks(found).items() <= expected.items()
        for rank, own in collectives(tmp_path / ranks).items():
            assert alike(own, job) == alike(calls[rank], job)


@pytest.mark.every_job
@pytest.mark.parametrize(("job", "size"), jobs(2))
def test_five_runs_need_the_same(runs: WarmRuns, tmp_path: Path, job: tuple[str, ...], size: int) -> None:
    need(job)
    found = []
    for _ in range(5):
        peaks_of_one = peaks(run(runs, "all", size, *job, trace=tmp_path / "all"))
        found.append((peaks_of_one, collectives(tmp_path / "all")))
    assert sorted(found[0][0]) == list(range(size))
    assert found[1:] == found[:1] * 4


def test_one_rank_of_many_stands_for_all(runs: WarmRuns) -> None:
    found = run(runs, "0", 1024, "parallel", "ddp").result
    world, (row,) = found["world"], found["ranks"]
    assert (world["size"], world["ranks_run"], world["worst_rank"], world["gpus_per_node"]) == (1024, [0], 0, 8)
    assert row["stands_for"] == ",".join(map(str, range(1024)))
    (communicator,) = row["communicators"]
    assert (communicator["name"], communicator["size"]) == ("all ranks", 1024)
    assert {"all_reduce", "broadcast"} <= set(communicator["kinds"])
    assert row["nccl_bytes"] == communicator["bytes"] > 0


def test_gloo_beside_nccl_asks_for_no_rank_and_says_that_it_moves_no_data(runs: WarmRuns) -> None:
    found = run(runs, "0", 8, "gloo_beside")
    assert (found.code, found.result["world"]["ranks_run"]) == (0, [0]), found.tail()
    (caveat,) = (text for text in found.result["caveats"] if "Gloo" in text)
    assert re.match(r"broadcast at \S*gloo_beside.py:13 uses Gloo, which moves no data", caveat)


def test_auto_runs_a_rank_of_each_stage(runs: WarmRuns) -> None:
    """Stage 0 is ranks 0 to 7, stage 1 ranks 8 to 15: the last one needs the shapes that rank 7 sends."""
    found = run(runs, "auto", 16, "parallel", "pipeline").result
    assert {0, 7, 15} <= set(found["world"]["ranks_run"]) <= {0, 7, 8, 15}
    assert [row["stands_for"] for row in found["ranks"]] == [
        ",".join(map(str, range(8))), ",".join(map(str, range(8, 16)))
    ]  # fmt: skip
    assert found["ranks"][0]["peak"]["allocated_bytes"] > found["ranks"][1]["peak"]["allocated_bytes"]


def test_a_rank_is_started_when_another_needs_its_data(runs: WarmRuns, tmp_path: Path) -> None:
    found = run(runs, "2", 3, "needs", trace=tmp_path / "trace")
    assert found.code == 0, found.tail()
    said = sorted(line for line in found.stdout.splitlines() if line.startswith("rank "))
    assert said == ["rank 1: [11, 12]", "rank 1: from 1", "rank 2: [11, 12]", "rank 2: from 1"]
    # Before NCCL 2.22, rank 2 has a row of its own: it is the end of a tree whose middle is rank 1.
    first = found.result["ranks"][0]
    assert (first["rank"], first["needed_by"]) == (1, 2)
    mark = traces.load(tmp_path / "trace").other_ranks[0].rank
    assert mark is not None
    assert (mark.rank, (mark.needed_where or "").rpartition("/")[2]) == (2, "")


def test_what_is_gathered_from_ranks_that_are_not_run_is_like_this_ranks_own(runs: WarmRuns) -> None:
    """Who gathers and scatters is no stage of a pipeline: rank 1 is run for what it broadcasts, and rank 2 is not."""
    found = run(runs, "auto", 4, "needs", "gather")
    said = sorted(line for line in found.stdout.splitlines() if "gathered" in line)
    nothing = "[None, None, None, None]"
    assert said == [
        "rank 0: for 0, gathered ['from ', 'from ', 'from ', 'from xxx']",
        f"rank 1: for 1, gathered {nothing}",
        f"rank 3: for 3, gathered {nothing}",
    ]
    assert found.result["world"]["ranks_run"] == [0, 1, 3]


def test_what_only_an_absent_rank_could_set_is_refused(runs: WarmRuns) -> None:
    found = run(runs, "1", 2, "needs", "store")
    assert found.code == 2
    assert re.search(r"rank 1 at .*needs\.py:\d+ waits for the key 'greeting' .* not run .*--ranks", found.stderr)


def test_a_world_of_another_size_than_the_scripts_is_refused(runs: WarmRuns) -> None:
    found = run(runs, "0", 4, "needs", "another size")
    assert found.code == 2
    assert "makes a process group of 2 ranks, but the job has 4" in found.stderr


def test_a_script_that_starts_ranks_itself_is_refused(runs: WarmRuns) -> None:
    found = run(runs, "0", 2, "needs", "another rank")
    assert found.code == 2
    assert "has started rank 0 of this job, but the script says that it is rank 1" in found.stderr


@pytest.mark.usefixtures("in_forks")
def test_the_smallest_number_of_gpus_is_found_by_running_the_script() -> None:
    """One GPU holds the model and its optimizer, two hold half of each."""
    job = Job(command=(str(SCRIPTS / "parallel.py"), "fsdp1"), gpu=gpus.find("800MiB,sm89"))
    found = scale(job, sizes=[1, 2], workers=2)
    assert [point.verdict for point in found.sweep.points] == ["does not fit", "fits"]
    assert found.smallest == 2
    assert found.estimate is not None
    assert found.estimate.world is not None
    assert found.estimate.world.size == 2


# --- who stands for whom ----------------------------------------------------------------------------------------------


def mark(rank: int, size: int, *neighbours: int) -> RankMark:
    use = CommunicatorUse(size=size, kinds=("send",), buffer_bytes=0, ranks=tuple(range(size)), neighbours=neighbours)
    return RankMark(rank=rank, world_size=size, local_rank=0, communicators=(use,))


def row(rank: int, device: int) -> RankEstimate:
    peak = PeakMemory(allocated_bytes=0, reserved_bytes=device, library_bytes=0, context_bytes=0,
                      device_low_bytes=device, device_high_bytes=device, request_bytes=device)  # fmt: skip
    return RankEstimate(
        rank=rank, stands_for=(rank,), local_rank=0, verdict="fits", peak=peak, num_steps=1, spare_bytes=0
    )


def test_the_rank_that_needs_more_stands_for_those_between() -> None:
    found, unknown = stand_for_others([row(0, 10), row(3, 8)], [mark(0, 4), mark(3, 4)], 4)
    assert [each.stands_for for each in found] == [(0, 1, 2), (3,)]
    assert unknown == ()


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([mark(7, 8, 5), mark(5, 8, 3, 7), mark(3, 8, 1, 5)], [0, 0, 1, 1, 2, 2, 3, 3]),
        ([mark(5, 8, 4, 6), mark(6, 8, 5, 7)], [0, 1, 2, 3, 0, 1, 2, 3]),
        ([mark(0, 4)], [0, 0, 0, 0]),
    ],
)
def test_stages_of_pipelines_follow_from_one_of_them(marks: list[RankMark], expected: list[int]) -> None:
    assert [roles(marks, len(expected))(rank) for rank in range(len(expected))] == expected


def test_a_stage_that_was_not_run_is_not_known() -> None:
    found, unknown = stand_for_others([row(0, 10)], [mark(0, 4, 2)], 4)
    assert [each.stands_for for each in found] == [(0, 1)]
    assert unknown == (2, 3)
