"""Many variants of a job: each runs once, in forks where a fork behaves like a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretell import gpus
from foretell.jobs import Job
from foretell.plan import Outcome, Variants
from foretell.plan.variants import _is_alike
from foretell.units import GIB, MIB
from made_up_runs import estimate_of

SCRIPT = """
import sys, torch
model = torch.nn.Linear(1024, 1024).cuda()
for _ in range(3):
    model(torch.randn(int(sys.argv[1]), 1024, device="cuda")).sum().backward()
"""
TELLS_FORKS_APART = """
import torch
is_alone = open("/proc/self/cmdline").read().split(chr(0))[1].endswith("train.py")
keep = torch.empty(1 << (20 if is_alone else 25), device="cuda")
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def job_of(tmp_path: Path, source: str, *words: str) -> Job:
    script = tmp_path / "train.py"
    script.write_text(source)
    return Job(command=(str(script), *words), gpu=gpus.find("rtx-3060"), cwd=tmp_path)


def test_each_variant_runs_once_and_outcomes_are_in_order(tmp_path: Path) -> None:
    job = job_of(tmp_path, SCRIPT)
    seen: list[str] = []
    sizes = ["1024", "4096", "1024", "8000000", "x"]
    with Variants(job, workers=2, on_outcome=lambda job, outcome: seen.append(job.command[1])) as variants:
        outcomes = variants.run([replace(job, command=(*job.command, size)) for size in sizes])
        again = variants.run([replace(job, command=(*job.command, "4096"))])
    assert [outcome.kind for outcome in outcomes] == ["fits", "fits", "fits", "oom", "failed"]
    assert sorted(seen) == sorted(set(sizes))
    assert again == [outcomes[1]]
    peaks = [outcome.estimate.peak.reserved_bytes for outcome in outcomes[:3] if outcome.estimate]
    assert peaks[0] == peaks[2] < peaks[1]
    assert outcomes[4].problem is not None
    assert "ValueError" in outcomes[4].problem


def test_a_fork_is_alike_if_only_garbage_differs() -> None:
    def outcome(allocated_bytes: int, reserved_bytes: int) -> Outcome:
        estimate = estimate_of(Job(command=("train.py",), gpu=gpus.find("rtx-3060")), reserved_bytes)
        peak = replace(estimate.peak, allocated_bytes=allocated_bytes)
        return Outcome(estimate=replace(estimate, peak=peak))

    own = outcome(2 * GIB, 3 * GIB)
    assert _is_alike(outcome(2 * GIB + 512, 3 * GIB), own)
    assert not _is_alike(outcome(2 * GIB + 2 * MIB, 3 * GIB), own)
    assert not _is_alike(outcome(2 * GIB, 3 * GIB + 2 * MIB), own)
    assert not _is_alike(Outcome(problem="it failed", is_failure=True), own)


@pytest.mark.usefixtures("in_forks")
def test_what_an_interrupted_search_found_is_there_when_it_is_repeated(tmp_path: Path) -> None:
    job = job_of(tmp_path, SCRIPT, "1024")

    def found() -> list[str]:
        return [path.name for path in (tmp_path / "cache" / "foretell" / "plans").iterdir()]

    def interrupted() -> None:
        with Variants(job, workers=1) as variants:
            first.extend(variants.run([job]))
            raise KeyboardInterrupt

    first: list[Outcome] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(found()) == 1
    ran: list[Outcome] = []
    with Variants(job, workers=1, on_outcome=lambda job, outcome: ran.append(outcome)) as variants:
        repeated = variants.run([job])
    assert not ran
    assert repeated[0].estimate is not None
    assert first[0].estimate is not None
    assert repeated[0].estimate.peak == first[0].estimate.peak
    assert found() == []


def test_a_script_that_notices_a_fork_gets_processes_of_its_own(tmp_path: Path) -> None:
    job = job_of(tmp_path, TELLS_FORKS_APART)
    said: list[str] = []
    with Variants(job, workers=2, say=said.append) as variants:
        other = replace(job, gpu=gpus.find("rtx-4090"))
        first, second = (outcome.estimate for outcome in variants.run([job, other]))
    assert len(said) == 1
    assert first is not None
    assert second is not None
    assert first.peak.allocated_bytes == second.peak.allocated_bytes
