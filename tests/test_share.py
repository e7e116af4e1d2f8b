"""Several jobs on one card: what fits together, in which slices, and how fast each runs beside the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell import gpus
from foretell.cli import main
from foretell.errors import ForetellError, TraceError, UnsupportedError, UsageError
from foretell.evaluation import pairs
from foretell.jobs import Job
from foretell.plan.share import Share, share
from foretell.plan.slices import assign
from foretell.records import EndedBy, Estimate, Together
from foretell.rules.capacity import side_by_side
from foretell.rules.sharing import Load, speeds
from foretell.units import GIB, MIB
from made_up_runs import estimate_of

A100 = gpus.find("a100-40gb")
HEAVY, LIGHT, IDLE = Load(1.0, 0.8), Load(0.4, 0.1), Load(0.0, 0.0)


def estimate(gib: int, *, gpu: str = "a100-40gb", command: str = "train.py") -> Estimate:
    """Of a job that reserves so much, with a context of 300 MiB of its own."""
    made = estimate_of(Job(command=(command,), gpu=gpus.find(gpu)), gib * GIB)
    return replace(made, is_context_given=True)


def shared(*jobs: Estimate, **options: Any) -> Share:
    return share(jobs, **options)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_peaks_add_up_and_each_process_has_its_own_context() -> None:
    found = shared(estimate(10), estimate(20))
    assert found.memory.device_bytes == 30 * GIB + 2 * 300 * MIB
    assert found.memory.request_bytes == found.memory.device_bytes + 2 * GIB  # what `estimate_of` adds to each
    assert (found.grade, found.memory.spare_bytes) == ("fits", A100.total_bytes - found.memory.request_bytes)


def test_requests_that_do_not_fit_are_tight_and_needs_that_do_not_are_too_much() -> None:
    most = A100.total_bytes // GIB
    assert shared(estimate(most - 20), estimate(18)).grade == "tight"
    assert shared(estimate(most - 20), estimate(21)).grade == "oom"
    assert shared(estimate(most - 20), estimate(17), used_by_others="4GiB").grade == "oom"


def test_mps_has_one_context_for_all() -> None:
    context = A100.context_bytes
    needs = [(GIB + context, 2 * GIB + context, context)] * 3
    assert side_by_side(A100, needs, shares_context=False).device_bytes == 3 * GIB + 3 * context
    assert side_by_side(A100, needs, shares_context=True).device_bytes == 3 * GIB + context
    assert side_by_side(A100, needs, shares_context=True).request_bytes == 6 * GIB + context


def test_a_job_of_several_processes_brings_all_their_contexts() -> None:
    one = estimate(4)
    several = Together(num_processes=3, device_bytes=3 * one.peak.device_bytes, reserved_bytes=12 * GIB)
    apart, mps = (shared(replace(one, together=several), one, mode=mode) for mode in ("time-slicing", "mps"))
    assert apart.memory.device_bytes == 4 * one.peak.device_bytes
    assert mps.memory.device_bytes == apart.memory.device_bytes - (4 * 300 * MIB - A100.context_bytes)


def test_on_another_card_each_context_is_that_of_the_card() -> None:
    on_small = replace(estimate(2, gpu="rtx-3060"), is_context_given=False)
    found = shared(on_small, on_small, gpu="a100-40gb")
    assert found.memory.device_bytes == 2 * (2 * GIB + A100.context_bytes)
    assert "estimated for another GPU: train.py (rtx-3060)" in found.notes[0]


def test_a_job_that_ran_out_of_memory_counts_with_its_need() -> None:
    too_large = estimate(50)
    assert too_large.verdict == "oom"
    with pytest.raises(UnsupportedError, match=r"train\.py: it ran out of memory, and what it needs is not known"):
        shared(too_large, estimate(1))
    need = foretell.api.need_of(estimate(50, gpu="a100-80gb"))
    found = shared(replace(too_large, need=need), estimate(1), gpu="a100-80gb")
    assert (found.grade, found.jobs[0].device_bytes) == ("fits", 50 * GIB + 300 * MIB)


def test_pairs_are_listed_best_first() -> None:
    found = shared(estimate(25), estimate(5), estimate(20), estimate(4))
    assert found.grade == "oom"
    assert [(pair.first, pair.second) for pair in found.pairs if pair.grade == "oom"] == [(0, 2)]
    assert (found.pairs[0].first, found.pairs[0].second) == (1, 3)
    assert not shared(estimate(1), estimate(1)).pairs
    busy = shared(estimate(1), estimate(1), estimate(1), busy=["99/90", "99/90", "10/2"])
    assert {busy.pairs[0].first, busy.pairs[0].second} != {0, 1}
    assert (busy.pairs[-1].first, busy.pairs[-1].second) == (0, 1)


# --- slices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "gib", "expected"),
    [
        ("a100-40gb", [4, 4], ["4g.20gb", "3g.20gb"]),
        ("a100-40gb", [4] * 7, ["1g.10gb", *["1g.5gb"] * 6]),
        ("a100-40gb", [4] * 8, None),
        ("a100-40gb", [19, 19, 1], None),
        ("a100-40gb", [19, 9, 9], ["4g.20gb", "2g.10gb", "1g.10gb"]),
        ("a100-40gb", [30, 1], None),
        ("a30", [5, 5, 5], ["2g.12gb", "1g.6gb", "1g.6gb"]),
        ("a30", [11, 11], ["2g.12gb", "2g.12gb"]),
        ("h100-sxm", [39, 39], ["4g.40gb", "3g.40gb"]),
    ],
)
def test_slices_are_as_large_as_fit_side_by_side(card: str, gib: list[int], expected: list[str] | None) -> None:
    found = assign(gpus.find(card), [size * GIB for size in gib])
    assert (found and [gpu.name.partition(":")[2] for gpu in found]) == expected


@pytest.mark.parametrize("name", sorted({gpu.name.partition(":")[0] for gpu in gpus.all_slices()}))
def test_a_card_has_room_for_as_many_slices_as_the_table_says(name: str) -> None:
    own = [gpu for gpu in gpus.all_slices() if gpu.name.startswith(f"{name}:")]
    for gpu in own:
        most = max(gpus.slices_per_card(each) or 0 for each in own if each.total_bytes >= gpu.total_bytes)
        assert assign(gpus.find(name), [gpu.total_bytes] * most) is not None, gpu.name
        assert assign(gpus.find(name), [gpu.total_bytes] * (most + 1)) is None, gpu.name


def test_a_job_in_a_slice_has_no_speed() -> None:
    found = shared(estimate(4), estimate(4), mode="mig", busy=["90/80", "90/80"])
    assert [job.slice and job.slice.name for job in found.jobs] == ["a100-40gb:4g.20gb", "a100-40gb:3g.20gb"]
    assert not any(job.speed for job in found.jobs)
    assert shared(estimate(19), estimate(18), mode="mig").grade == "tight"
    assert shared(estimate(25), estimate(1), mode="mig").grade == "oom"
    with pytest.raises(UsageError, match="rtx-3060 cannot be divided into MIG slices"):
        shared(estimate(1), estimate(1), gpu="rtx-3060", mode="mig")


# --- speed ------------------------------------------------------------------------------------------------------------


def test_a_job_beside_an_idle_one_runs_as_alone() -> None:
    for speed in speeds([HEAVY, IDLE]):
        assert (speed.expected, speed.high) == (1.0, 1.0)


def test_the_busier_the_neighbours_the_slower_the_job() -> None:
    neighbours = ([IDLE], [LIGHT], [HEAVY], [HEAVY, LIGHT], [HEAVY] * 2)
    beside = [speeds([HEAVY, *others])[0].expected for others in neighbours]
    assert beside == sorted(beside, reverse=True)
    assert all(0 <= speed.low < speed.expected <= speed.high <= 1 for speed in speeds([HEAVY] * 5))


def test_without_the_utilization_of_one_job_no_speed_is_given() -> None:
    found = shared(estimate(1, command="a.py"), estimate(1, command="b.py"), busy=["90/60", "-"])
    assert not any(job.speed for job in found.jobs)
    assert found.notes[-1].startswith("memory only: how busy b.py keeps the GPU is not known")


def test_utilization_in_the_file_of_an_estimate_gives_speeds(tmp_path: Path) -> None:
    paths = []
    for number, used in enumerate(({"gract": 0.97, "dram_active": 0.6}, {"gract": 0.5, "dram_active": 0.2})):
        document = json.loads(estimate(2).to_json()) | {"utilization": used}
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(document))
    found = share(paths)
    assert [job.load for job in found.jobs] == [Load(0.97, 0.6), Load(0.5, 0.2)]
    assert found.jobs[0].speed == speeds([Load(0.97, 0.6), Load(0.5, 0.2)])[0]


def test_the_utilization_of_another_card_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    document = json.loads(estimate(2).to_json()) | {"utilization": {"gract": 0.9, "dram_active": 0.6}}
    path.write_text(json.dumps(document))
    assert all(job.speed for job in share([path, path]).jobs)
    assert not any(job.speed for job in share([path, path], gpu="a100-80gb").jobs)
    assert all(job.speed for job in share([path, path], gpu="a100-80gb", busy=["90/60", "90/60"]).jobs)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"source,a,b\nLucid\n", b"x\n1\n"])
def test_a_file_that_has_no_pairs_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "time_collocation.csv").write_bytes(content)
    with pytest.raises(UsageError, match=str(tmp_path)):
        pairs.read(tmp_path)


def test_measured_pairs_are_compared_by_the_utilization_of_each_alone(tmp_path: Path) -> None:
    head = "source,gpu,how,a,a_dataset,a_batch,a_amp,b,b_dataset,b_batch,b_amp,a_speed,b_speed"
    single = "source,gpu,model,dataset,batch_size,amp,samples_per_second,gpu_utilization_pct,memory_utilization_pct"
    (tmp_path / "time_collocation.csv").write_text(
        f"{head}\nLucid,rtx-3090,x,R,I,64,0,M,I,64,0,0.6,0.9\nGavel,v100,x,R,I,64,0,M,I,64,0,0.5,0.5\n"
    )
    assert pairs.read(tmp_path) == ([], 2)
    (tmp_path / "time_lucid_single.csv").write_text(f"{single}\nLucid,x,R,I,64,0,1,100,80\nLucid,x,M,I,64,0,1,40,10\n")
    measured, num_unknown = pairs.read(tmp_path)
    assert (num_unknown, [each.speed for each in measured]) == (1, [0.6, 0.9])
    ours, nothing, *_ = pairs.figures(measured)
    assert (nothing.tool, nothing.mean_abs_error) == ("no slowdown", pytest.approx(0.25))
    expected = [speed.expected for speed in speeds([HEAVY, LIGHT])]
    assert ours.mean_abs_error == pytest.approx((expected[0] - 0.6 + abs(expected[1] - 0.9)) / 2)
    assert main(["evaluate", str(tmp_path), "--sets", "time_collocation", "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert (rows[0]["set"], rows[0]["tool"], rows[0]["metric"]) == ("time_collocation", "foretell", "speed")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reads_files_and_its_exit_code_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text(estimate(5).to_json())
    large.write_text(estimate(35).to_json())
    assert main(["share", str(small), str(small), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["verdict"], len(document["jobs"])) == ("foretell.share/1", "fits", 2)
    assert main(["share", str(small), str(large)]) == 3
    assert "do not fit together" in " ".join(capsys.readouterr().out.split())


def test_a_script_is_run_on_the_card_that_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    from foretell import api

    asked: list[Job] = []

    def run(job: Job, **options: Any) -> Any:
        asked.append(job)
        return job

    class Done:
        complete_estimate = estimate(3)

    monkeypatch.setattr(api, "run", run)
    monkeypatch.setattr(api, "follow_up", lambda done, **options: Done)
    found = share([["train.py", "--n", "8"], ["train.py", "--n", "8"]], gpu="a100-40gb", steps=2)
    (job,) = asked
    assert (job.command, job.gpu.name, job.options.steps) == (("train.py", "--n", "8"), "a100-40gb", 2)
    assert job.options.stdout == "file"  # standard output may be JSON
    assert job.options.time
    assert [job.name for job in found.jobs] == ["train.py --n 8"] * 2


@pytest.mark.parametrize(
    ("jobs", "options", "kind", "message"),
    [
        ([estimate(1)], {}, UsageError, "give two or more"),
        ([estimate(1), estimate(1)], {"mode": "magic"}, UsageError, "--mode magic: must be one of time-slicing"),
        ([estimate(1), estimate(1)], {"busy": ["90/60"]}, UsageError, "--busy has 1 entries for 2 jobs"),
        ([estimate(1), estimate(1)], {"busy": ["90", "-"]}, UsageError, "--busy 90: must be GPU/MEMORY utilization"),
        ([estimate(1), estimate(1)], {"busy": ["190/60", "-"]}, UsageError, "--busy 190/60: must be"),
        ([estimate(1), ["train.py"]], {}, UsageError, "a script needs to know the GPU"),
        ([estimate(1), estimate(1, gpu="l4")], {}, UsageError, "say which GPU they share"),
        ([estimate(1), "missing.json"], {}, TraceError, "cannot read missing.json: No such file"),
        ([estimate(1), __file__], {}, TraceError, "is neither a trace nor JSON"),
        ([estimate(1), estimate(1)], {"gpu": "voodoo"}, UsageError, "unknown GPU"),
    ],
)
def test_wrong_input_is_told(jobs: Any, options: Any, kind: type[ForetellError], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        share(jobs, **options)
    assert raised.value.exit_code == 2


def test_an_incomplete_run_is_named(tmp_path: Path) -> None:
    stopped = replace(estimate(1), ended_by=EndedBy(kind="time_limit", message="stopped after 60 s"))
    assert any("incomplete runs" in note for note in shared(stopped, estimate(1)).notes)
