"""A job and an estimate as records: checked when made, the same after a journey as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell import gpus
from foretell.errors import TraceError, UsageError
from foretell.jobs import CaptureOptions, Job, changes
from foretell.protocol.options import OPTIONS
from foretell.records import Estimate, LibraryBytes, MeasuredConvolution, Profile
from report_data import estimate_for, transformer

GPU = gpus.find("rtx-3060")
PROFILE = Profile(
    device_name=GPU.device_name, total_bytes=GPU.total_bytes, torch_version="2.6.0", cuda_version="12.4",
    cudnn_version=90100, driver_version="580", context_bytes=256 << 20,
    libraries=LibraryBytes(cublas=1, cudnn=2, nccl=3),
    convolutions=(
        MeasuredConvolution(
            direction="data", element_bytes=2, x=(8, 3, 4, 4), y=(8, 3, 4, 4), w=(3, 3, 1, 1), workspace_bytes=64
        ),
    ),
)  # fmt: skip


def an_estimate() -> Estimate:
    return estimate_for(transformer(num_layers=2), gpu="rtx-3060")


def a_job(**given: Any) -> Job:
    return Job(**{"command": ("train.py", "--batch-size", "8"), "gpu": GPU, **given})


FULL = a_job(
    call=bytes(range(256)),
    cwd=Path("/data/experiment"),
    environment=changes({"SEED": "1", "HOME": None}),
    context_bytes=300 << 20,
    used_by_others_bytes=1 << 30,
    profile=PROFILE,
    options=CaptureOptions(steps=7, engine="cpu", timeout_seconds=1.5, alternatives=("autocast=bfloat16",)),
)


@pytest.mark.parametrize("job", [a_job(), FULL], ids=["small", "full"])
def test_a_job_is_the_same_after_a_journey_as_json(job: Job) -> None:
    assert Job.from_json(job.to_json()) == job


def test_equal_jobs_have_the_same_key_and_others_another() -> None:
    assert a_job().key == a_job().key
    different = [a_job(cwd=Path("/")), a_job(context_bytes=1), a_job(options=CaptureOptions(steps=1)), FULL]
    different += [a_job(environment=changes({"A": value})) for value in ("1", None)]
    assert len({job.key for job in [a_job(), *different]}) == 1 + len(different)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"command": ()}, "nothing to run"),
        ({"command": "train.py --batch 8"}, r"a list of words: \['train.py', '--batch', '8'\]"),
        ({"environment": (("A=B", "1"),)}, "is not a variable"),
        ({"environment": (("", "1"),)}, "is not a variable"),
        ({"context_bytes": 1 << 50}, "--context .* has only"),
        ({"context_bytes": -1}, "--context -1 bytes: must be 0 or more"),
        ({"used_by_others_bytes": 1 << 50}, "--used-by-others .* has only"),
        ({"gpu": gpus.find("a100-40gb"), "profile": PROFILE}, r"measured on .*3060, but --gpu is .*A100"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_when_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        a_job(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "foretell.job/9"}, "the schema is 'foretell.job/9'"),
        ({"colour": "red"}, "has no colour"),
        ({"command": [1]}, r"Job.command\[0\]: 1 is not a string"),
        ({"context_bytes": "much"}, "Job.context_bytes: 'much' is not an integer"),
        ({"options": {"engine": "gpu"}}, "Job.options.engine: 'gpu' is not one of"),
        ({"options": {"steps": True}}, "Job.options.steps: True is not"),
        ({"call": "%"}, "not a job"),
        ({"gpu": {"name": "x"}}, "Job.gpu needs device_name"),
    ],
)
def test_json_that_is_no_job_is_told_where_it_is_wrong(change: dict[str, Any], message: str) -> None:
    document = json.loads(a_job().to_json())
    with pytest.raises(UsageError, match=message):
        Job.from_json(json.dumps({**document, **change}))
    with pytest.raises(UsageError, match="not a job"):
        Job.from_json("{")


def test_what_an_empty_process_takes_is_given_or_measured_or_guessed() -> None:
    jobs = [a_job(), a_job(profile=PROFILE), a_job(profile=PROFILE, context_bytes=5)]
    assert [job.empty_process_bytes for job in jobs] == [GPU.context_bytes, 256 << 20, 5]
    assert [job.is_context_given for job in jobs] == [False, True, True]


def test_a_job_changes_the_environment_it_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_SHELL", "1")
    monkeypatch.setenv("UNWANTED", "1")
    variables = a_job(environment=changes({"OF_THE_JOB": "2", "UNWANTED": None})).variables()
    assert (variables["OF_THE_SHELL"], variables["OF_THE_JOB"]) == ("1", "2")
    assert "UNWANTED" not in variables
    assert os.environ["UNWANTED"] == "1"


def test_an_option_has_the_same_default_on_both_sides() -> None:
    """What is not in the protocol is the parent's own business."""
    ours = {each.name: each.default for each in fields(CaptureOptions)}
    assert {name: option.default for name, option in OPTIONS.items() if name != "directory"}.items() <= ours.items()
    assert ours.keys() - OPTIONS.keys() == {
        "events", "timeout_seconds", "most_host_bytes", "stdout", "keep_writes", "host_factor", "price_per_hour",
        "workspaces",
    }  # fmt: skip


# --- the estimate -----------------------------------------------------------------------------------------------------


def test_an_estimate_is_the_same_after_a_journey_as_json_but_for_who_held_the_memory() -> None:
    estimate = an_estimate()
    back = Estimate.from_json(estimate.to_json())
    assert back == replace(estimate, attribution=None)
    assert Estimate.from_json(back.to_json()) == back


def test_an_estimate_of_an_older_foretell_is_read_too() -> None:
    document = json.loads(an_estimate().to_json())
    names = ("name", "total_bytes", "device_name", "compute_capability")
    document["gpu"] = {name: document["gpu"][name] for name in names}
    for name in ("library_names", "is_context_given", "engine", "leaks", "advice"):
        document.pop(name)
    document["peak"].pop("request_bytes")
    read = Estimate.from_json(json.dumps(document))
    assert read.gpu == an_estimate().gpu
    assert read.peak.request_bytes == read.peak.device_high_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "neither a trace nor JSON"),
        ("{}", "not written by foretell"),
        ('{"schema": "foretell.estimate/1"}', "damaged estimate: it has no 'gpu'"),
    ],
)
def test_json_that_is_no_estimate_is_told(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Estimate.from_json(text)


def test_a_damaged_estimate_is_told_where() -> None:
    document = json.loads(an_estimate().to_json())
    document["peak"]["reserved_bytes"] = "much"
    with pytest.raises(TraceError, match=r"Estimate\.peak\.reserved_bytes: 'much' is not an integer"):
        Estimate.from_json(json.dumps(document))


def test_an_estimate_prints_short() -> None:
    estimate = an_estimate()
    assert len(repr(estimate)) < 120
    assert estimate.gpu.name in repr(estimate)
    assert len(str(estimate).splitlines()) == 2
    assert "fits on" in str(estimate)


def test_a_notebook_shows_verdict_bar_and_peaks() -> None:
    estimate = an_estimate()
    shown = estimate._repr_html_()
    assert "fits" in shown
    assert estimate.gpu.device_name in shown
    assert "width:" in shown
    assert "http" not in shown
    assert "<script" not in shown
    named = replace(estimate, gpu=replace(estimate.gpu, device_name="<b>card</b>"), verdict="oom")
    assert "&lt;b&gt;card" in named._repr_html_()
    assert "runs out of memory" in named._repr_html_()


def test_what_is_exported_is_there() -> None:
    for name in foretell.__all__:
        assert getattr(foretell, name) is not None
    assert {"command", "cwd", "environment", "gpu"} <= {each.name for each in fields(foretell.Job)}
