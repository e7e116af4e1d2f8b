"""Instant estimates: summaries, descriptions, the shipped model, batches of jobs, and decisions."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.test_formulas import JOB

import foretell
from foretell import gpus
from foretell.cli.main import main
from foretell.errors import TraceError, UsageError
from foretell.features import plain_features
from foretell.formulas.model_states import least_bytes
from foretell.guessing import answer, answer_all
from foretell.guessing.summary import read_summary
from foretell.learn import estimator
from foretell.units import GIB

A100 = gpus.find("a100-40gb")
TORCHSUMMARY = """
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1           [-1, 64, 32, 32]           1,792
              ReLU-2           [-1, 64, 32, 32]               0
            Linear-3                   [-1, 10]         655,370
================================================================
Total params: 657,162
Trainable params: 657,162
Non-trainable params: 0
----------------------------------------------------------------
"""
TORCHINFO = """
==========================================================================================
Layer (type:depth-idx)                   Output Shape              Param #
==========================================================================================
Net                                      [16, 10]                  --
├─Sequential: 1-1                        [16, 64, 32, 32]          --
│    └─Conv2d: 2-1                       [16, 64, 32, 32]          1,792
│    └─ReLU: 2-2                         [16, 64, 32, 32]          --
├─Linear: 1-2                            [16, 10]                  655,370
==========================================================================================
Total params: 657,162
Trainable params: 657,162
"""


@pytest.mark.parametrize(("text", "batch_size"), [(TORCHSUMMARY, 16), (TORCHINFO, None)])
def test_a_summary_gives_layers_and_parameters(text: str, batch_size: int | None) -> None:
    job = read_summary(text, batch_size=batch_size)
    assert [layer.kind for layer in job.layers or ()] == ["Conv2d", "ReLU", "Linear"]
    assert [layer.activations for layer in job.layers or ()] == [16 * 64 * 1024, 16 * 64 * 1024, 160]
    assert (job.parameters, job.batch_size, job.family) == (657_162, 16, "cnn")
    assert "saved_bytes" in job.unknown


def test_a_summary_without_a_batch_asks_for_one() -> None:
    with pytest.raises(UsageError, match="--batch-size N"):
        read_summary(TORCHSUMMARY)


@pytest.mark.parametrize(
    ("old", "new"),
    [("657,162", "9" * 5000), ("[-1, 10]", f"[-1, {'9' * 5000}]"), ("[-1, 10]", "[-1, 99999999, 99999999, 99999999]")],
)
def test_a_summary_with_absurd_numbers_is_refused(old: str, new: str) -> None:
    with pytest.raises(UsageError, match=r"digits|output of 8\.0e\+24 elements"):
        read_summary(TORCHSUMMARY.replace(old, new), batch_size=8)


def test_another_text_is_no_summary() -> None:
    with pytest.raises(UsageError, match="Known formats: torchsummary and torchinfo"):
        read_summary("loss 0.1\nloss 0.2\n")


def test_a_guess_from_a_summary_is_wider_and_says_what_it_lacks() -> None:
    complete = answer(JOB, A100)
    summary = answer(replace(JOB, saved_bytes=None, convolutions=None, played_bytes=None), A100)
    assert "only layers and parameters are known" in summary.notes[0]
    assert summary.device_low_bytes < summary.device_bytes < summary.device_high_bytes
    assert complete.notes == ()


def test_nothing_is_guessed_from_nothing() -> None:
    with pytest.raises(UsageError, match="too little is known"):
        answer(replace(JOB, layers=None), A100)


def test_a_limit_within_the_interval_is_unclear() -> None:
    job = JOB.with_batch(2000)
    interval = answer(job, A100)
    limits = {
        "fits": 80 * GIB, "oom": interval.device_low_bytes // 2,
        "unclear": (interval.device_low_bytes + interval.device_high_bytes) // 2,
    }  # fmt: skip
    for decision, total_bytes in limits.items():
        assert answer(job, replace(A100, total_bytes=total_bytes)).decision == decision


def test_a_guess_is_never_below_parameters_gradients_and_states() -> None:
    huge = replace(JOB, parameter_bytes=40 * GIB, trainable_bytes=40 * GIB)
    guessed = answer(huge, A100)
    assert guessed.device_low_bytes > least_bytes(huge) == 160 * GIB


def test_a_job_twice_as_large_as_any_gets_twice_the_memory() -> None:
    """Nothing is answered by the largest value that training has seen."""
    large = JOB.with_batch(40_000_000)
    first, second = answer(large, A100), answer(large.with_batch(80_000_000), A100)
    assert first.reserved_bytes > 200 * GIB
    assert second.reserved_bytes / first.reserved_bytes == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"batch_size": -4}, {"length": 0}])
def test_a_size_of_nothing_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"(batch_size|length) -?\d: must be 1 or more"):
        foretell.guess(JOB, gpu="a100-40gb", **given)


def test_many_jobs_get_the_answers_of_each() -> None:
    jobs = [JOB.with_batch(size) for size in (1, 7, 100, 10_000)]
    assert answer_all(jobs, A100) == [answer(job, A100) for job in jobs]


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".json"):
        shutil.copy(estimator.SHIPPED.with_suffix(suffix), tmp_path / f"model{suffix}")
    assert estimator.read(tmp_path / "model").guess(JOB, A100) == estimator.shipped().guess(JOB, A100)
    data = bytearray((tmp_path / "model.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "model.npz").write_bytes(bytes(data))
    with pytest.raises(TraceError, match="not those that its card describes"):
        estimator.read(tmp_path / "model")


def test_a_model_of_other_features_is_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".json"):
        shutil.copy(estimator.SHIPPED.with_suffix(suffix), tmp_path / f"model{suffix}")
    card = json.loads((tmp_path / "model.json").read_text())
    card["features"]["complete"][0] = "another"
    (tmp_path / "model.json").write_text(json.dumps(card))
    with pytest.raises(TraceError, match="trained on other features"):
        estimator.read(tmp_path / "model")


def test_shipped_files_are_small_and_say_what_they_were_trained_on() -> None:
    assert estimator.SHIPPED.with_suffix(".npz").stat().st_size < 1_000_000
    data = estimator.shipped().card["data"]
    assert data["sources"] == {"virtual": data["jobs"]}


def test_the_command_reads_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.txt").write_text(TORCHSUMMARY)
    words = ["guess", "--gpu", "a100-40gb", "--batch-size", "64", "--json", "-", str(tmp_path / "net.txt")]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["decision"], found["batch_size"]) == ("foretell.guess/1", "fits", 64)


def test_a_batch_answers_each_line_and_names_bad_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps(plain_features(JOB)), "{", json.dumps({"source": "typed"}), json.dumps({"colour": "red"})]
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["guess", "--gpu", "a100-40gb", "--jobs", str(tmp_path / "jobs.jsonl")]) == 0
    shown = capsys.readouterr()
    assert "3 of 4 lines have no answer" in shown.err
    first, *others = [json.loads(line) for line in shown.out.splitlines()]
    assert first["reserved_bytes"] == answer(JOB, A100).reserved_bytes
    assert ["error" in each for each in others] == [True, True, True]
    assert "JobFeatures has no colour" in others[2]["error"]


def test_a_batch_without_any_answer_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.jsonl").write_text("{\n[]\n")
    assert main(["guess", "--gpu", "a100-40gb", "--jobs", str(tmp_path / "jobs.jsonl")]) == 2
    shown = capsys.readouterr()
    assert "2 of 2 lines have no answer" in shown.err
    assert all("error" in json.loads(line) for line in shown.out.splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["guess"], "nothing to guess"),
        (["guess", "resnet50"], "not a script (.py), a model by name"),
        (["guess", "--batch-size", "0", "timm:resnet50"], "--batch-size 0: must be 1 or more"),
        (["guess", "--input-shape", "3,a", "timm:resnet50"], "--input-shape 3,a: must be numbers"),
        (["guess", "--batch-size", "8", "train.py"], "a script takes its arguments after it"),
        (["guess", "--then-run", "timm:resnet50"], "--then-run needs a training script"),
        (["guess", "--jobs", "missing.jsonl"], "--jobs missing.jsonl: No such file"),
        (["guess", "--model", "missing", "x.txt"], "cannot use the model"),
        (["dataset", "generate", "labels.xml"], "must end with .csv, .csv.gz or .parquet"),
        (["dataset", "generate", "--kinds", "rnn", "labels.csv"], "--kinds rnn: must be among mlp"),
        (["dataset", "describe", "missing.csv"], "not a data set of the schema"),
        (["evaluate", ".", "--estimators", "oracle"], "does not contain"),
    ],
)
def test_a_mistake_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_python_guesses_from_a_description() -> None:
    assert foretell.guess(JOB, gpu="a100-40gb") == answer(JOB, A100)
    assert foretell.guess(JOB, gpu="a100-40gb", batch_size=200).batch_size == 200
