"""The largest value of a knob: what is said of every outcome, with made-up runs; and a few real ones."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell import gpus
from foretell.cli.main import main
from foretell.errors import NothingOnGpuError, ScriptError, UsageError
from foretell.jobs import Job
from foretell.plan import maximum as module
from foretell.plan.knobs import Argument, ConfigKey, Variable
from foretell.plan.maximum import Evaluation, Maximum, maximum
from foretell.plan.maximum_report import document
from foretell.records import EndedBy
from foretell.units import GIB, MIB
from made_up_runs import estimate_of, made_up

KNOB = Argument("--batch-size")
JOB = Job(command=("train.py", "--batch-size", "8"), gpu=gpus.find("rtx-3060"))
LINEAR = 100 * MIB


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], int]], Any]:
    def use(need: Callable[[int], int]) -> Any:
        kind = made_up(lambda job: need(int(KNOB.value_in(job) or 0)))
        monkeypatch.setattr(module, "Variants", kind)
        return kind

    return use


def failing(n: int) -> int:
    raise ScriptError(f"the script itself failed at train.py:3: ValueError: {n} is wrong")


def test_the_largest_is_found_with_its_estimate(runs: Any) -> None:
    runs(lambda n: n * LINEAR)
    shown: list[Evaluation] = []
    found = maximum(JOB, KNOB, on_evaluation=shown.append)
    largest = (JOB.gpu.total_bytes - 300 * MIB) // LINEAR
    assert (found.value, found.above, found.is_certain) == (largest, "memory", True)
    assert found.estimate is not None
    assert found.estimate.peak.reserved_bytes == largest * LINEAR
    assert sorted(shown, key=lambda each: each.value) == list(found.evaluations)
    assert {each.value: each.verdict for each in found.evaluations}[largest + 1] == "does not fit"
    assert not found.notes
    assert shown[0].value == 8  # that of the command


def test_a_safety_margin_and_the_request_lower_the_answer(runs: Any) -> None:
    runs(lambda n: n * LINEAR)
    values = [
        maximum(JOB, KNOB, **options).value
        for options in ({}, {"is_request": True}, {"safety_bytes": 2 * GIB}, {"multiple_of": 8}, {"high": 50})
    ]
    free = JOB.gpu.total_bytes - 300 * MIB
    assert values[:3] == [free // LINEAR, (free - GIB) // LINEAR, (free - 2 * GIB) // LINEAR]
    assert values[3:] == [values[0] // 8 * 8, 50]


def test_the_end_of_the_range_is_no_limit_of_memory(runs: Any) -> None:
    runs(lambda n: min(n, 60) * MIB)
    found = maximum(JOB, KNOB, high=500)
    assert (found.value, found.above) == (500, "range")
    (note,) = found.notes
    assert "to 500 the peak is the same" in note


def test_a_script_that_runs_only_without_the_knob_does_not_accept_it(runs: Any) -> None:
    runs(lambda n: failing(n) if n else LINEAR)
    expected = r"runs as given, but fails with every value of --batch-size (.|\n)*--arg=--batch-size="
    with pytest.raises(UsageError, match=expected):
        maximum(replace(JOB, command=("train.py",)), KNOB)


def test_if_nothing_fits_the_need_of_the_smallest_is_told(runs: Any) -> None:
    runs(lambda n: 30 * GIB + n * MIB)
    found = maximum(JOB, KNOB, low=4)
    assert found.value is None
    assert found.estimate is None
    assert found.need is not None
    assert found.need.reserved_bytes == 30 * GIB + 4 * MIB
    assert found.need.smallest_gpus


@pytest.mark.parametrize(
    ("need", "words", "value", "message"),
    [
        (lambda n: n * MIB, ("--max", "30"), 30, "every value tried up to --max 30 fits; give a larger --max"),
        (lambda n: 30 * GIB + n * MIB, (), None, "no value from 1 to 1048576 fits; give a larger GPU."),
        (lambda n: n * GIB, ("--min", "64"), None, "no value from 64 to 1048576 fits; give a --min below 64"),
    ],
)  # fmt: skip
def test_a_range_in_which_everything_or_nothing_fits_is_a_wrong_one_and_still_gets_its_answer(
    runs: Any, monkeypatch: Any, capsys: Any, tmp_path: Path, need: Any, words: Any, value: Any, message: str
) -> None:
    runs(need)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    given = ("--gpu", "rtx-3060", "--json", "-", "--quiet", *words, "train.py", "--batch-size", "8")
    assert main(["max-batch", "--arg=--batch-size", *given]) == 2
    shown = capsys.readouterr()
    assert f"foretell: error: --batch-size: {message}" in shown.err
    answer = json.loads(shown.out)
    assert answer["batch_size"] == value
    assert (answer["estimate"] is None, answer["need"] is None) == (value is None, value is not None)


def test_values_with_which_the_script_fails_are_no_answers(runs: Any) -> None:
    runs(lambda n: n * MIB if n <= 100 else failing(n))
    found = maximum(JOB, KNOB)
    assert (found.value, found.above) == (100, "failure")
    problem, above = found.notes
    assert re.match(r"failed with 101, .*: the script itself failed at train\.py:3: ValueError: 101 is wrong", problem)
    assert above == "larger values than 100 may fit in memory, but the script fails with them"


def test_a_smaller_value_that_does_not_fit_is_told(runs: Any) -> None:
    runs(lambda n: n * LINEAR + (4 * GIB if n == 16 else 0) + (8 * GIB if n == 16 else 0))
    assert maximum(JOB, KNOB).notes == ("not every smaller value fits: 16 did not",)


def test_a_run_that_was_stopped_is_no_verdict(monkeypatch: pytest.MonkeyPatch, runs: Any) -> None:
    runs(lambda n: n * MIB)
    stopped = EndedBy(kind="host_memory", message="the script was stopped at its limit of host memory")

    class Stopping(module.Variants):  # type: ignore[name-defined,misc]
        def run(self, jobs: Any) -> Any:
            outcomes = super().run(jobs)
            return [
                replace(each, estimate=replace(each.estimate, ended_by=stopped))
                if int(KNOB.value_in(job) or 0) > 200 else each
                for job, each in zip(jobs, outcomes, strict=True)
            ]  # fmt: skip

    monkeypatch.setattr(module, "Variants", Stopping)
    found = maximum(JOB, KNOB)
    assert (found.value, found.above) == (200, "failure")
    assert "limit of host memory" in found.notes[0]


@pytest.mark.parametrize(
    ("need", "error", "message"),
    [
        (lambda n: GIB, UsageError, "ignores --batch-size: with 8, 16, 32 and 64 it reserves the same 1.00 GiB"),
        (failing, ScriptError, "the script itself fails with --batch-size 1 and all others: .* 1 is wrong"),
    ],
)  # fmt: skip
def test_a_knob_without_effect_and_a_script_that_always_fails_are_told(
    need: Any, error: type[Exception], message: str, runs: Any
) -> None:
    runs(need)
    with pytest.raises(error, match=message):
        maximum(JOB, KNOB)


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: unrecognized arguments: --batch-size 8",
        "train.py: error: argument --batch-size: invalid int value: '8'",
        "Error: No such option: --batch-size",
        "Could not override 'batch-size'.",
    ],
)
def test_a_script_that_does_not_know_the_knob_is_told_at_once(line: str, runs: Any) -> None:
    def refuse(n: int) -> int:
        raise ScriptError(f"the script itself ended with exit code 2\n  usage: train.py\n  {line}")

    kind = runs(refuse)
    with pytest.raises(UsageError, match="the script does not accept --batch-size: ") as error:
        maximum(JOB, KNOB)
    assert str(error.value).endswith(line)
    assert len(kind.asked) == 2


def test_a_job_that_cannot_be_estimated_is_told_at_once(runs: Any) -> None:
    def refuse(n: int) -> int:
        raise NothingOnGpuError("nothing was put on the GPU")

    kind = runs(refuse)
    with pytest.raises(foretell.UnsupportedError, match="nothing was put on the GPU"):
        maximum(JOB, KNOB)
    assert len(kind.asked) == 2


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (("train.py", "--batch-size", "auto"), {}, None),
        (("train.py", "--batch-size", "big"), {}, "--batch-size is 'big': not an integer"),
        (("train.py",), {"low": 0}, "--min 0: must be 1 or more"),
        (("train.py",), {"multiple_of": 0}, "--multiple-of 0: must be 1 or more"),
        (("train.py",), {"low": 9, "high": 8}, "--min 9 --max 8: there is no value between them"),
        (("train.py",), {"low": 9, "high": 15, "multiple_of": 8}, "no value that is a multiple of 8 between them"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(
    command: tuple[str, ...], options: dict[str, int], message: str | None, runs: Any
) -> None:
    kind = runs(lambda n: n * LINEAR)
    job = replace(JOB, command=command)
    if message is None:
        assert maximum(job, KNOB, **options).value
        return
    with pytest.raises(UsageError, match=message):
        maximum(job, KNOB, **options)
    assert not kind.asked


def test_json_names_the_value_after_the_knob(runs: Any) -> None:
    runs(lambda n: n * LINEAR)
    found = maximum(JOB, KNOB)
    for knob, name in (
        (KNOB, "batch_size"), (Argument("--seq-len"), "seq_len"), (Argument("model.width="), "width"),
        (Variable("BATCH"), "BATCH"), (ConfigKey("conf/a.yaml:data.batch_size"), "batch_size"),
    ):  # fmt: skip
        shown = document(replace(found, knob=knob))
        assert shown[name] == shown["value"] == found.value
    assert shown["estimate"]["schema"] == "foretell.estimate/1"
    assert shown["gpu"]["name"] == "rtx-3060"
    assert document(found, key="n")["n"] == found.value
    assert [each["value"] for each in shown["evaluations"]] == [each.value for each in found.evaluations]
    assert json.loads(json.dumps(shown)) == shown


def an_answer(**changes: Any) -> Maximum:
    """For the golden texts."""
    evaluations = []
    for value in (8, 16, 30, 31, 32):
        estimate = estimate_of(JOB, value * 380 * MIB)
        verdict = "fits" if estimate.verdict == "fits" else "does not fit"
        evaluations.append(Evaluation(value=value, verdict=verdict, estimate=estimate))  # type: ignore[arg-type]
    given: dict[str, Any] = {
        "job": JOB, "knob": KNOB, "values": range(1, 1 << 20), "value": 30, "above": "memory", "is_certain": True,
        "evaluations": tuple(evaluations),
    }  # fmt: skip
    return Maximum(**{**given, **changes})


# --- real runs --------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, tomllib, torch
n = int(tomllib.load(open("train.toml", "rb"))["data"]["batch_size"]) if len(sys.argv) < 2 else int(sys.argv[-1])
model = torch.nn.Linear(1024, 1024).cuda()
for _ in range(3):
    model(torch.randn(n, 1024, device="cuda")).sum().backward()
"""
LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def loader(count, size):
    return DataLoader(TensorDataset(torch.zeros(count, 4096)), batch_size=size)
training, validation = loader(20000, 16), loader(40, 10)
sizes = set()
for epoch in range(2):
    for (x,) in training:
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()
    for (x,) in validation:
        with torch.no_grad():
            model(x.cuda())
        sizes.add(len(x))
assert sizes == {10}, sizes
"""


@pytest.fixture(autouse=True)
def own_folder_and_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("in_forks")
def test_a_key_of_a_configuration_file_is_searched_and_the_file_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("tomllib", "tomli") if sys.version_info < (3, 11) else SCRIPT)
    config = "[data]\nbatch_size = 64 # small\n"
    (tmp_path / "train.toml").write_text(config)
    words = ("--gpu", "2GiB,sm89", "--multiple-of", "65536", "--json", "-", "train.py")
    code = main(["max-batch", "--config-key", "train.toml:data.batch_size", *words])
    said = capfd.readouterr()
    assert code == 0, said.err
    result = json.loads(said.out)
    assert result["batch_size"] % 65536 == 0
    verdicts = {each["value"]: each["verdict"] for each in result["evaluations"]}
    assert verdicts[result["batch_size"]] == "fits"
    assert verdicts[result["batch_size"] + 65536] == "does not fit"
    assert result["estimate"]["verdict"] == "fits"
    assert not result["estimate"]["redirected_writes"]
    assert (tmp_path / "train.toml").read_text() == config


@pytest.mark.usefixtures("in_forks")
def test_the_loader_that_feeds_the_training_is_changed_and_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(LOADERS)
    words = ("--gpu", "1GiB,sm89", "--multiple-of", "4096", "--json", "-", "train.py")
    code = main(["max-batch", "--dataloader", *words])
    said = capfd.readouterr()
    assert code == 0, said.err
    result = json.loads(said.out)
    assert "changing the DataLoader at " in said.err
    assert "no forks" not in said.err
    assert "train.py:7 (batch size 16, 20,000 samples)" in said.err
    assert result["max"] <= 20000
    assert {each["verdict"] for each in result["evaluations"]} == {"fits", "does not fit"}
    assert result["above"] == "memory"
