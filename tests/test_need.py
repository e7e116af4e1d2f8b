"""What a job needs that ran out of memory: found by running it again on a larger card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import CaptureFolder, training_run
from foretell import api, gpus
from foretell.errors import UnsupportedError
from foretell.jobs import CaptureOptions, Job
from foretell.trace import from_capture, load, save
from foretell.units import GIB, MIB


def run_of(folder: CaptureFolder, **changes: Any) -> api.Run:
    result = folder.result(**changes)
    return api.Run(job=result.job, trace=replace(from_capture(result), seconds={"total": 40.0}))


def out_of_memory(directory: Path, **changes: Any) -> api.Run:
    directory.mkdir(exist_ok=True)
    folder = training_run(directory)
    folder.journal("oom", 11, step=1, phase="forward", requested_bytes=4096, message="CUDA out of memory.", where=None)
    return run_of(folder, exit_status=1, **changes)


class Second:
    """The run on a larger card, made by hand, and the job it was asked for."""

    def __init__(self, outcome: api.Run | BaseException) -> None:
        self._outcome = outcome
        self.jobs: list[Job] = []

    def __call__(self, job: Job, **_: Any) -> api.Run:
        self.jobs.append(job)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        others = job.used_by_others_bytes
        return replace(self._outcome, trace=replace(self._outcome.trace, used_by_others_bytes=others))


@pytest.fixture
def large(tmp_path: Path) -> api.Run:
    folder = CaptureFolder(tmp_path).torch().step(0, 6, 0, 20 * GIB, (19 * GIB, 20 * GIB))
    return run_of(folder.end(0, 20 * GIB, (19 * GIB, 20 * GIB)))


@pytest.fixture
def second(large: api.Run, monkeypatch: pytest.MonkeyPatch) -> Second:
    asked = Second(large)
    monkeypatch.setattr(api, "run", asked)
    return asked


def test_the_need_is_that_of_a_run_on_a_card_of_the_same_kind_with_more_memory(tmp_path: Path, second: Second) -> None:
    first, said = out_of_memory(tmp_path / "first"), list[str]()
    found = api.find_need(first, say=said.append)
    estimate = found.estimate
    assert (estimate.verdict, estimate.need_unknown) == ("oom", None)
    assert estimate.need is not None
    assert estimate.need.reserved_bytes == 20 * GIB
    assert estimate.need.device_bytes == 20 * GIB + first.job.gpu.context_bytes < estimate.need.request_bytes
    assert "larger card" in said[0]
    assert estimate.seconds["need"] >= 0
    (job,) = second.jobs
    assert job.gpu == replace(first.job.gpu, total_bytes=1 << 40)
    assert job.options.stdout == "file"


def test_the_smallest_cards_that_fit_are_named(tmp_path: Path, second: Second) -> None:
    need = api.find_need(out_of_memory(tmp_path / "first")).estimate.need
    assert need is not None
    named = [gpus.find(name).total_bytes for name in need.smallest_gpus]
    assert named == sorted(named)
    assert min(named) >= need.device_bytes - gpus.find("rtx-3060").context_bytes
    smaller = [gpu for gpu in gpus.all_gpus() if gpu.total_bytes < named[0]]
    assert all(gpu.total_bytes < need.reserved_bytes + gpu.context_bytes for gpu in smaller)
    with_others = api.find_need(out_of_memory(tmp_path / "others", used_by_others_bytes=10 * GIB)).estimate.need
    assert with_others is not None
    assert gpus.find(with_others.smallest_gpus[0]).total_bytes >= need.device_bytes + 10 * GIB - 500 * MIB


def test_the_need_is_in_the_trace(tmp_path: Path, second: Second) -> None:
    found = api.find_need(out_of_memory(tmp_path / "first"))
    save(found.trace, tmp_path / "a.trace")
    assert load(tmp_path / "a.trace").need == found.trace.need is not None


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 120.0), (100.0, 60.0), (41.0, 1.0)])
def test_the_second_run_is_bounded_by_the_first_and_by_the_time_limit(
    tmp_path: Path, second: Second, timeout: float | None, seconds: float
) -> None:
    api.find_need(out_of_memory(tmp_path / "first", options=CaptureOptions(timeout_seconds=timeout)))
    assert second.jobs[0].options.timeout_seconds == seconds


def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: api.Run | BaseException) -> str:
    monkeypatch.setattr(api, "run", Second(outcome))
    estimate = api.find_need(out_of_memory(tmp_path / "first")).estimate
    assert (estimate.verdict, estimate.need) == ("oom", None)
    assert estimate.need_unknown is not None
    return estimate.need_unknown


def test_a_need_that_was_not_found_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: api.Run) -> None:
    def why(outcome: api.Run | BaseException) -> str:
        return unknown(tmp_path, monkeypatch, outcome)

    assert why(out_of_memory(tmp_path / "again")) == "it also runs out of 1024.00 GiB"
    stopped = replace(large, trace=replace(large.trace, is_timed_out=True))
    assert why(stopped) == (
        "in a run on a larger card, the script was stopped at its time limit (--timeout) after 1 training step"
    )
    assert why(UnsupportedError("no space left.")) == "in a run on a larger card, no space left"
    assert why(api.Interrupted(large)) == "the run on a larger card was interrupted"


def test_without_time_or_after_a_stop_there_is_no_second_run(tmp_path: Path, second: Second) -> None:
    late = api.find_need(out_of_memory(tmp_path / "late", options=CaptureOptions(timeout_seconds=40.0)))
    assert late.estimate.need_unknown == "no time was left (--timeout)"
    stopped = api.find_need(out_of_memory(tmp_path / "stopped", is_timed_out=True))
    assert stopped.estimate.need_unknown == "the run was stopped"
    assert not second.jobs


def test_a_job_that_fits_is_run_once(tmp_path: Path, second: Second, large: api.Run) -> None:
    assert api.find_need(large) is large
    assert not second.jobs
