"""The smallest number of GPUs, with made-up runs; and a real one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from foretell import gpus
from foretell.errors import ScriptError, UsageError
from foretell.jobs import Job
from foretell.plan import scale_report
from foretell.plan import sweep as module
from foretell.plan.knobs import Argument, WorldSize
from foretell.plan.scale import Scale, scale, sizes_between
from foretell.units import GIB, MIB
from made_up_runs import made_up

JOB = Job(command=("train.py",), gpu=gpus.find("rtx-3060"))
STAGE = Argument("--stage")
Need = Callable[[int, str], int]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Need], Any]:
    def use(need: Need) -> Any:
        kind = made_up(lambda job: need(job.world_size or 0, STAGE.value_in(job) or ""))
        monkeypatch.setattr(module, "Variants", kind)
        return kind

    return use


def sharded(size: int, stage: str) -> int:
    """200 GiB, all or half of it in shards; what is not must fit as well."""
    return 2 * GIB + 200 * GIB // size if stage != "2" else 8 * GIB + 100 * GIB // size


def tried(found: Scale) -> list[int]:
    return [int(point.values[0]) for point in found.sweep.points]


def test_the_smallest_number_is_found_among_whole_machines(runs: Any) -> None:
    kind = runs(sharded)
    found = scale(JOB, [])
    assert found.smallest == 24  # 2 + 200 / 24 is 10.3 of 11.8 GiB; 16 need 14.5
    assert tried(found) == [1, 2, 4, 8, 16, 24, 32]
    assert found.ways[0].why == "with 16 it does not fit"
    assert found.estimate is not None
    assert found.estimate.peak.reserved_bytes == sharded(24, "")
    assert {job.world_size for job in kind.asked} == set(tried(found))


def test_numbers_are_powers_of_two_in_a_machine_and_then_machines() -> None:
    assert sizes_between(1, 40, 8) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert sizes_between(3, 20, 6) == [4, 6, 12, 18]
    assert sizes_between(5, 5, 8) == [5]
    with pytest.raises(UsageError, match="--min 9 --max 8"):
        sizes_between(9, 8, 8)


def test_each_combination_has_an_answer_of_its_own(runs: Any) -> None:
    runs(sharded)
    found = scale(JOB, [(STAGE, ["3", "2"])])
    assert [(way.values, way.smallest) for way in found.ways] == [(("3",), 24), (("2",), 32)]
    assert found.best is found.ways[0]
    first, second = scale_report.answers(found)
    assert first.startswith("24 GPUs of NVIDIA GeForce RTX 3060 (rtx-3060) are enough with --stage 3: a rank needs ")
    assert second.startswith("--stage 2: 32 GPUs, a rank needs ")


def test_replicas_do_not_shrink_so_the_search_ends(runs: Any) -> None:
    runs(lambda size, stage: 20 * GIB)
    found = scale(JOB, [])
    assert found.smallest is None
    assert tried(found) == [1, 2, 4, 8]
    assert found.ways[0].why.startswith("more than 8 would not help")


def test_numbers_with_which_the_script_fails_are_passed_over(runs: Any) -> None:
    def need(size: int, stage: str) -> int:
        if size % 16:
            raise ScriptError("the script itself failed: ValueError: tensor parallel 16")
        return sharded(size, stage)

    runs(need)
    found = scale(JOB, [])
    assert found.smallest == 32
    assert tried(found) == [1, 2, 4, 8, 16, 24, 32]
    assert found.ways[0].why == "with 24 it fails"
    assert next(scale_report.notes_of(found)).startswith("failed with 1 GPU and 4 others: the script itself failed")


def test_all_the_sizes_that_are_named_are_run_and_no_others(runs: Any) -> None:
    runs(sharded)
    found = scale(JOB, [], sizes=[64, 8, 32])
    assert tried(found) == [8, 32, 64]
    assert found.smallest == 32


def test_a_tight_fit_is_told_and_not_taken_with_safe(runs: Any) -> None:
    runs(lambda size, stage: 11 * GIB // size + 100 * MIB)  # requests are 1 GiB larger
    tight = scale(JOB, [])
    assert tight.smallest == 1
    assert any("is tight" in note or "it is tight" in note for note in scale_report.notes_of(tight))
    assert scale(JOB, [], is_request=True).smallest == 2


def test_a_script_that_fails_with_every_number_is_told(runs: Any) -> None:
    def fail(size: int, stage: str) -> int:
        raise ScriptError("the script itself failed: ValueError")

    runs(fail)
    with pytest.raises(ScriptError, match="fails with every value of GPUs"):
        scale(JOB, [])


def test_csv_json_and_the_page_have_every_number(runs: Any) -> None:
    pytest.importorskip("plotly")
    runs(sharded)
    found = scale(JOB, [(STAGE, ["3", "2"])])
    document = json.loads(scale_report.to_json(found))
    rows = list(csv.DictReader(io.StringIO(scale_report.to_csv(found))))
    assert (document["schema"], document["smallest"]) == ("foretell.scale/1", 24)
    assert document["ways"][1] == {"values": {"stage": 2}, "smallest": 32, "why": "with 24 it does not fit"}
    assert document["points"][0]["values"] == {"world_size": 1, "stage": 3}
    assert [row["GPUs"] for row in rows] == [str(each["values"]["world_size"]) for each in document["points"]]
    page = scale_report.to_html(found)
    assert '"type":"log"' in page
    assert "24 GPUs of NVIDIA GeForce RTX 3060" in page


def test_a_number_of_gpus_is_a_knob() -> None:
    assert WorldSize().set(JOB, "64").world_size == 64
    with pytest.raises(UsageError, match="must be a number"):
        WorldSize().set(JOB, "many")
    with pytest.raises(UsageError, match="--world-size 70000: must be 1 to 65536"):
        WorldSize().set(JOB, "70000")


def test_a_script_that_fails_with_few_gpus_is_tried_with_more_but_not_for_ever(runs: Any) -> None:
    def need(size: int, stage: str) -> int:
        if size < 16 or stage == "3":
            raise ScriptError(f"the script itself failed on rank {size - 1}: ValueError")
        return sharded(size, stage)

    runs(need)
    found = scale(JOB, [(STAGE, ["2", "3"])])
    assert [way.smallest for way in found.ways] == [32, None]
    assert found.ways[1].why == "the script fails with every number from 1 to 32 that was tried"
    assert sum(note.startswith("failed with") for note in scale_report.notes_of(found)) == 1


def a_scale(monkeypatch: pytest.MonkeyPatch, sizes: list[int] | None = None) -> Scale:
    """For the golden texts."""

    def need(size: int, stage: str) -> int:
        if stage == "3" and size == 1:
            raise ScriptError("the script itself failed: ValueError: one GPU")
        return 100 * GIB if stage == "0" else sharded(size, stage)

    made = made_up(lambda job: need(job.world_size or 0, STAGE.value_in(job) or ""))
    monkeypatch.setattr(module, "Variants", made)
    return scale(JOB, [(STAGE, ["0", "2", "3"])], sizes=sizes)
