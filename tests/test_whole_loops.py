"""A script that fails after foretell had ended a loop early: it is run again, with whole loops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from capture_folder import CaptureFolder, training_run
from foretell import api, gpus
from foretell.errors import UnsupportedError
from foretell.jobs import CaptureOptions, Job
from foretell.trace import from_capture, load, save
from warm_runs import WarmRuns

NOT_FINISHED = "the loops that foretell ended early were not run to their ends: "


def cut(directory: Path, *loops: tuple[str, float | None], seconds: float = 20.0, **changes: Any) -> api.Run:
    """A run that failed after these loops had been ended early; each has seconds that would have remained."""
    directory.mkdir(exist_ok=True)
    folder = training_run(directory)
    for kind, remaining in loops:
        what = f"{kind} loop over a DataLoader, after 3 batches"
        folder.journal("ended_early", 10, how="loader", step=2, what=what, loop=kind, remaining_seconds=remaining)
    folder.journal("exception", 11, type="AssertionError", message="", where="train.py:9", is_oom=False)
    return made(folder, seconds=seconds, exit_status=1, **changes)


def made(folder: CaptureFolder, *, seconds: float, **changes: Any) -> api.Run:
    result = folder.result(**changes)
    return api.Run(job=result.job, trace=replace(from_capture(result), seconds={"total": seconds}))


class Again:
    """The further runs, made by hand, and the options they were asked for."""

    def __init__(self, *outcomes: api.Run | BaseException) -> None:
        self._outcomes = list(outcomes)
        self.options: list[CaptureOptions] = []

    def __call__(self, job: Job, **_: Any) -> api.Run:
        self.options.append(job.options)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def whole(tmp_path: Path) -> api.Run:
    """It ended well."""
    (tmp_path / "whole").mkdir()
    return made(training_run(tmp_path / "whole"), seconds=30.0)


def finish(
    monkeypatch: pytest.MonkeyPatch, first: api.Run, *outcomes: api.Run | BaseException
) -> tuple[api.Run, Again]:
    again = Again(*outcomes)
    monkeypatch.setattr(api, "run", again)
    return api.follow_up(first), again


def test_a_run_with_whole_evaluations_takes_the_place_of_one_that_failed_after_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: api.Run
) -> None:
    first = cut(tmp_path / "first", ("evaluation", 40.0))
    assert first.estimate.ended_by is not None
    assert "had ended an evaluation early, the script failed" in first.estimate.ended_by.message
    found, again = finish(monkeypatch, first, whole)
    assert found.estimate.complete
    assert found.estimate.caveats == whole.estimate.caveats
    assert found.estimate.seconds["earlier_runs"] == 20.0
    assert found.trace.seconds["total"] == 50.0
    (options,) = again.options
    assert (options.whole_loops, options.timeout_seconds, options.stdout) == ("evaluation", 300.0, "file")


def test_training_loops_are_run_whole_only_if_that_is_what_the_script_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: api.Run
) -> None:
    first = cut(tmp_path / "first", ("training", 100.0), ("evaluation", 40.0))
    still = cut(tmp_path / "still", ("training", 100.0))
    found, again = finish(monkeypatch, first, still, whole)
    assert [options.whole_loops for options in again.options] == ["evaluation", "all"]
    assert found.estimate.complete
    assert found.estimate.seconds["earlier_runs"] == 40.0
    _, again = finish(monkeypatch, cut(tmp_path / "training", ("training", 100.0)), whole)
    assert [options.whole_loops for options in again.options] == ["all"]


def test_a_script_that_fails_with_whole_loops_too_has_itself_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    itself = cut(tmp_path / "itself")
    found, _ = finish(monkeypatch, cut(tmp_path / "first", ("evaluation", 40.0)), itself)
    ended_by = found.estimate_so_far.ended_by
    assert ended_by is not None
    assert (ended_by.kind, ended_by.message) == ("script", "the script itself failed at train.py:9: AssertionError")


@pytest.mark.parametrize(
    ("remaining", "timeout", "limit"),
    [(270.0, None, 300.0), (None, None, 60.0), (1000.0, 2000.0, 1980.0), (None, 50.0, 30.0)],
)
def test_further_runs_are_bounded_by_what_remains_and_by_the_time_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: api.Run,
    remaining: float | None,
    timeout: float | None,
    limit: float,
) -> None:
    options = CaptureOptions(timeout_seconds=timeout)
    first = cut(tmp_path / "first", ("evaluation", remaining), options=options)
    _, again = finish(monkeypatch, first, whole)
    assert [each.timeout_seconds for each in again.options] == [limit]


def why(monkeypatch: pytest.MonkeyPatch, first: api.Run, *outcomes: api.Run | BaseException) -> str:
    """Why the loops were not finished; the number of the first run stays."""
    found, _ = finish(monkeypatch, first, *outcomes)
    assert found.estimate.peak == first.estimate.peak
    assert not found.estimate.complete
    (caveat,) = [each for each in found.estimate.caveats if each.startswith(NOT_FINISHED)]
    return caveat.removeprefix(NOT_FINISHED)


def test_loops_that_were_not_finished_are_a_caveat_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: api.Run
) -> None:
    first = cut(tmp_path / "first", ("evaluation", 40.0))
    late = replace(whole, trace=replace(whole.trace, is_timed_out=True))
    assert why(monkeypatch, first, late) == "this took more than 5 min; --timeout SECONDS allows more"
    assert why(monkeypatch, first, api.Interrupted(whole)) == "that run was interrupted"
    assert why(monkeypatch, first, UnsupportedError("no space left.")) == "no space left"
    long = cut(tmp_path / "long", ("evaluation", 100.0), ("evaluation", 9000.0))
    assert why(monkeypatch, long) == "this would take at least 3 h; --timeout SECONDS allows more than 5 min"
    still = cut(tmp_path / "still", ("training", 400.0))
    assert why(monkeypatch, first, still) == "this would take at least 7 min; --timeout SECONDS allows more than 5 min"


def test_other_ends_are_not_followed_by_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: api.Run
) -> None:
    loop = ("evaluation", 40.0)
    assert finish(monkeypatch, whole)[0] is whole
    itself = cut(tmp_path / "itself")
    assert finish(monkeypatch, itself)[0] is itself
    for number, changes in enumerate(
        [{"is_timed_out": True}, {"is_interrupted": True}, {"options": CaptureOptions(steps=3)}]
    ):
        other = cut(tmp_path / str(number), loop, **changes)
        assert finish(monkeypatch, other)[0] is other


def test_the_cut_loops_are_in_the_trace(tmp_path: Path) -> None:
    first = cut(tmp_path / "first", ("training", None), ("evaluation", 40.0))
    save(first.trace, tmp_path / "a.trace")
    assert load(tmp_path / "a.trace").cut_loops == first.trace.cut_loops
    assert [(loop.kind, loop.remaining_seconds) for loop in first.trace.cut_loops] == [
        ("training", None),
        ("evaluation", 40.0),
    ]


# --- scripts ----------------------------------------------------------------------------------------------------------

COUNTS = """
import sys
import torch
from torch.utils.data import DataLoader, IterableDataset
class Stream(IterableDataset):  # without a length: its evaluation is ended after three batches
    def __iter__(self):
        return iter(torch.zeros(320, 64))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    trained = 0
    for batch in DataLoader(torch.zeros(320, 64), 8):
        trained += len(batch)
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        outputs = [model(batch.cuda()).cpu() for batch in DataLoader(Stream(), 8)]
    assert len(torch.cat(outputs)) == 320
    assert trained == 320 or sys.argv[1] == "evaluation"
    torch.cat(outputs).expand(1000, 320, 64).cuda().clone()
"""
METRIC_BYTES = 1000 * 320 * 64 * 4


@pytest.mark.parametrize("counted", ["training", "evaluation"])
def test_a_script_that_compares_counts_gets_a_complete_estimate(
    warm_runs: WarmRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: str
) -> None:
    (tmp_path / "train.py").write_text(COUNTS)
    job = Job(command=(str(tmp_path / "train.py"), counted), gpu=gpus.find("rtx-3060"))
    monkeypatch.setattr(api, "run", partial(api.run, warm=warm_runs.warm))
    first, said = api.run(job), list[str]()
    estimate = api.follow_up(first, say=said.append).estimate
    assert estimate.complete, estimate
    assert ["whole evaluation loops" in each for each in said] == [True, False][: 2 if counted == "training" else 1]
    assert estimate.peak.reserved_bytes >= METRIC_BYTES > first.estimate.peak.reserved_bytes
    assert len(estimate.steps) == (41 if counted == "training" else 5)
