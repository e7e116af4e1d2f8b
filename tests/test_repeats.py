"""`--interval simulated`: which runs are made, within which time, and what they do to the interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capture_folder import training_run
from foretell import api, repeats
from foretell.analysis.verdict import estimate_of
from foretell.errors import ForetellError, UsageError
from foretell.jobs import CaptureOptions, Job
from foretell.records import Batches, Estimate, Evidence, Repeat
from foretell.rules.interval import causes_of, with_repeats
from foretell.units import GIB, MIB

if TYPE_CHECKING:
    from warm_runs import WarmRuns

EVIDENCE = Evidence(
    kind="asked", reserved_bytes=GIB, workspaces_more_bytes=10 * MIB, context_bytes=0, is_context_given=True,
    library_bytes=0, waiting_bytes=300 * MIB, longer_bytes=500 * MIB, are_lengths_unknown=True,
)  # fmt: skip
VARYING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Lines(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return torch.zeros(3, 32 + 16 * (number % 24), 64)

def padded(items):
    longest = max(each.shape[1] for each in items)
    return torch.stack([nn.functional.pad(each, (0, 0, 0, longest - each.shape[1])) for each in items])

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(64, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images in DataLoader(Lines(), batch_size=2, shuffle=True, collate_fn=padded):
    model(images.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def moved(*repeats_: Repeat) -> dict[str, tuple[int, int]]:
    causes = causes_of(with_repeats(EVIDENCE, repeats_))
    return {cause.name: (cause.below_bytes // MIB, cause.above_bytes // MIB) for cause in causes}


def repeat(kind: str, mib: int) -> Repeat:
    return Repeat(kind=kind, name=kind, moved_bytes=mib * MIB)  # type: ignore[arg-type]


# --- what they mean ---------------------------------------------------------------------------------------------------


def test_without_repeats_rules_decide() -> None:
    found = moved()
    assert found["streams"] == (300, 0)
    assert found["lengths"] == (0, 500)
    assert "values" not in found


def test_a_repeat_replaces_the_rule_about_what_it_shows() -> None:
    found = moved(repeat("events", -20), repeat("order", -30), repeat("order", 40), repeat("values", 50))
    assert found["streams"] == (20, 0)
    assert found["lengths"] == (30, 40)
    assert found["values"] == (0, 50)


def test_other_workspaces_widen_what_was_calibrated_and_never_narrow_it() -> None:
    calibrated = moved()["convolutions"]
    assert moved(repeat("workspaces", -1))["convolutions"] == calibrated
    assert moved(repeat("workspaces", -3000), repeat("workspaces", 2000))["convolutions"] == (3000, 2000)


# --- which runs are made ----------------------------------------------------------------------------------------------


@pytest.fixture
def first(tmp_path: Path) -> api.Run:
    trace = training_run(tmp_path).trace()
    return api.Run(job=Job(command=("train.py",), gpu=trace.gpu), trace=replace(trace, seconds={"total": 10.0}))


def an_estimate(run: api.Run, **evidence: object) -> Estimate:
    estimate = estimate_of(run.trace)
    known = replace(EVIDENCE, **evidence)  # type: ignore[arg-type]
    return replace(estimate, evidence=known, batches=Batches(num=4, num_shapes=3))


def simulated(
    run: api.Run, estimate: Estimate, again: Callable[[Job], int], seconds_a_run: float = 0.0
) -> tuple[Estimate, list[CaptureOptions]]:
    asked: list[CaptureOptions] = []
    now = 0.0

    def counted(job: Job) -> int:
        nonlocal now
        now += seconds_a_run
        asked.append(job.options)
        return again(job)

    return repeats.simulated(run, estimate, again=counted, clock=lambda: now), asked


def test_every_choice_that_the_job_leaves_open_is_made_once(first: api.Run) -> None:
    found, asked = simulated(first, an_estimate(first), lambda job: GIB + (job.options.workspaces == "next") * 5 * MIB)
    choices = [(each.alternatives, each.workspaces, each.events) for each in asked]
    assert choices == [
        ((), "asked", "late"), (("shuffle=1",), "asked", "late"), ((), "next", "late"), ((), "none", "late"),
        ((), "asked", "early"), (("shuffle=2",), "asked", "late"), (("shuffle=3",), "asked", "late"),
    ]  # fmt: skip
    assert found.evidence is not None
    assert [each.moved_bytes // MIB for each in found.evidence.repeats] == [0, 5, 0, 0, 0, 0]
    assert {"lengths", "streams"}.isdisjoint(cause.name for cause in found.causes)
    peak, causes = found.peak, found.causes
    assert peak.device_high_bytes == peak.device_bytes + sum(cause.above_bytes for cause in causes)


def test_a_job_without_open_choices_is_not_run_again(first: api.Run) -> None:
    estimate = replace(an_estimate(first, kind="plain", waiting_bytes=0), batches=Batches(num=4, num_shapes=1))
    found, asked = simulated(first, estimate, lambda job: GIB)
    assert (found, asked) == (estimate, [])


def test_repeats_take_no_longer_than_the_first_run_and_say_what_is_missing(first: api.Run) -> None:
    found, asked = simulated(first, an_estimate(first), lambda job: GIB, seconds_a_run=4.0)
    assert len(asked) == 3  # after 4 and 8 of 10 seconds there is time for another
    assert [each.timeout_seconds for each in asked] == [10.0, 6.0, 2.0]
    assert found.caveats[-1].endswith("batches shuffled with seed 2, batches shuffled with seed 3 (no time left)")


def test_a_repeat_that_fails_says_nothing(first: api.Run) -> None:
    def again(job: Job) -> int:
        if job.options.workspaces == "none":
            raise UsageError("no")
        return GIB

    found, _ = simulated(first, an_estimate(first), again)
    assert found.evidence is not None
    assert "--workspaces none" not in [each.name for each in found.evidence.repeats]


def test_if_the_job_cannot_be_repeated_the_quick_interval_stays(first: api.Run) -> None:
    def again(job: Job) -> int:
        raise ForetellError("it fails in a fork")

    estimate = an_estimate(first)
    found, asked = simulated(first, estimate, again)
    assert len(asked) == 1
    assert found.evidence == estimate.evidence
    assert "the interval was simulated without: " in found.caveats[-1]


def test_shuffled_batches_and_other_workspaces_move_the_peak_of_a_real_run(warm_runs: WarmRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(VARYING)
    peaks = [
        warm_runs.run(script, gpu="a100-40gb", steps=3, **options).peak["reserved_bytes"]
        for options in ({}, {"alternatives": ("shuffle=1",)}, {"alternatives": ("shuffle=2",)}, {"workspaces": "none"})
    ]
    assert len(set(peaks[:3])) > 1
    assert peaks[3] < peaks[0]
