"""The data set and the training of learned estimators, on rows made by hand."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.test_formulas import JOB

from conftest import HANG_SECONDS
from foretell import gpus
from foretell.errors import TraceError, UnsupportedError, UsageError
from foretell.formulas import own
from foretell.inside.describe import Catcher
from foretell.learn import dataset, estimator, trees, vectors
from foretell.learn.dataset import Row
from foretell.learn.draws import KINDS, draw
from foretell.learn.processes import LABEL_GPU, Worker
from foretell.plain import to_plain

FAMILIES = {
    "mlp": JOB.layers or (),
    "encoder": (*(JOB.layers or ()), *(replace(layer, kind="LayerNorm") for layer in JOB.layers or ())),
    "cnn": tuple(replace(layer, kind="Conv2d") for layer in JOB.layers or ()),
}


def rows(num: int = 80) -> list[Row]:
    """Truth: 40 MiB, four times the parameters, what is saved, and a tenth more for what the formula cannot know."""
    generator = random.Random(0)
    found = []
    for kind, layers in FAMILIES.items():
        for i in range(num):
            job = replace(JOB, layers=layers).with_batch(generator.randrange(100, 100_000))
            truth = 40 * 2**20 + 4 * (job.parameter_bytes or 0) + 1.1 * (job.saved_bytes or 0)
            found.append(
                Row(
                    kind=kind, group=f"{kind}-{i}", gpu="400GiB,sm80", torch="2.6.0", source="virtual",
                    draw=f"{kind}-{i}", features=job, reserved_bytes=int(truth),
                )
            )  # fmt: skip
    return found


def test_the_same_seed_draws_the_same_jobs_however_many() -> None:
    assert draw(KINDS, 30, seed=3)[:12] == draw(KINDS, 12, seed=3)
    assert draw(KINDS, 12, seed=4) != draw(KINDS, 12, seed=3)
    assert {each.kind for each in draw(KINDS, 12, seed=3)} == set(KINDS)


def test_sizes_of_one_architecture_are_one_group() -> None:
    names = [each for each in draw(("torchvision",), 60, seed=0) if str(each.options["model"]).startswith("resnet")]
    assert len(names) > 2
    assert {each.group for each in names} == {"torchvision-resnet"}


@pytest.mark.parametrize("name", ["labels.csv", "labels.csv.gz"])
def test_a_data_set_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    dataset.write(tmp_path / name, rows(2))
    assert dataset.read(tmp_path / name) == rows(2)
    assert dataset.read(tmp_path) == rows(2)


def test_the_shipped_sample_can_be_read_and_described() -> None:
    sample = dataset.read(dataset.SAMPLE)
    assert len(sample) == 100
    assert {row.source for row in sample} == {"virtual"}
    assert next(dataset.describe(sample)) == f"100 jobs; schema {dataset.SCHEMA}"
    assert len(dataset.merge([sample, sample])[0]) == 100


def test_another_schema_is_refused(tmp_path: Path) -> None:
    dataset.write(tmp_path / "labels.csv", rows(1))
    text = (tmp_path / "labels.csv").read_text().replace(dataset.SCHEMA, "foretell.dataset/9")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(TraceError, match=r"its schema is 'foretell\.dataset/9'"):
        dataset.read(tmp_path / "labels.csv")


def test_a_measured_run_takes_the_place_of_a_label() -> None:
    label = rows(1)[0]
    measured = replace(label, source="a100", reserved_bytes=7)
    assert dataset.merge([[label], [measured]]) == ([measured], 1)


def test_training_recovers_what_the_rows_were_made_of(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    from foretell.learn import train

    before = dict(own.coefficients())
    labelled = [row.labelled for row in rows()]
    try:
        train.write_formula(tmp_path / "formula.json", labelled)
        train.save(tmp_path / "model", train.learn(rows()))
        model = estimator.read(tmp_path / "model")
        errors = []
        for row in rows():
            guess = model.guess(row.features, row.labelled.gpu)
            assert guess is not None
            errors.append(abs(guess.reserved_bytes / row.reserved_bytes - 1))
    finally:
        own._used.update(before)
    assert sorted(errors)[len(errors) // 2] < 0.01
    assert model.card["scores"]["complete"]["mlp"]["median"] < 0.01


def test_too_few_jobs_of_a_family_are_named() -> None:
    pytest.importorskip("scipy")
    from foretell.learn import train

    with pytest.raises(UsageError, match="0 usable jobs of the family cnn"):
        train.fit_formula([row.labelled for row in rows() if row.kind != "cnn"])


def test_arrays_give_what_lightgbm_gives() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    import numpy as np

    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(400, 5))
    inputs[::7, 2] = np.nan
    target = inputs[:, 0] * 2 + np.nan_to_num(inputs[:, 2]) ** 2
    options = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    booster = lightgbm.train(options, lightgbm.Dataset(inputs, label=target), num_boost_round=30)
    arrays = trees.from_lightgbm(booster)
    assert np.allclose(arrays.predict(inputs), booster.predict(inputs), atol=1e-5)


def test_a_label_does_not_depend_on_the_jobs_before_it() -> None:
    """Nor on the description. Each is what the first job of a process gets."""
    small, large = (
        next(each for each in draw(("mlp",), 200, seed=1) if low < int(each.options["input_size"] or 0) < high)
        for low, high in ((4, 100), (2000, 3000))
    )
    encoder = next(each for each in draw(("encoder",), 50, seed=2) if each.has_rehearsal and each.batch_size < 64)
    with Worker(gpus.find(LABEL_GPU), is_fresh=True) as worker:
        fresh = [worker.ask({"draw": to_plain(each), "describes": False}) for each in (small, encoder)]
    with Worker(gpus.find(LABEL_GPU)) as worker:
        worker.ask({"draw": to_plain(large)})
        assert "problem" in worker.ask({"draw": {**to_plain(large), "optimizer": "Unheard"}})
        again = [worker.ask({"draw": to_plain(each)}) for each in (small, encoder)]
    assert [each["reserved_bytes"] for each in again] == [each["reserved_bytes"] for each in fresh]
    assert again[0]["features"]["batch_size"] == small.batch_size
    assert again[1]["features"]["earlier_bytes"] > 0


def test_a_job_that_does_not_end_is_given_up_and_the_next_one_is_answered() -> None:
    """A process that answers its first question with an empty object, and its second one never."""
    program = "print('ready', flush=True); input(); print('{}', flush=True); input(); input()"
    with Worker(gpus.find(LABEL_GPU), limit_seconds=0.2, command=[sys.executable, "-c", program]) as worker:
        worker._limit_seconds = HANG_SECONDS
        assert worker.ask({}) == {}
        worker._limit_seconds = 0.2
        assert worker.ask({}) == {"problem": "no answer within 0 seconds"}
        worker._limit_seconds = HANG_SECONDS
        assert worker.ask({}) == {}


def test_a_process_that_cannot_start_says_why() -> None:
    with (
        Worker(gpus.find(LABEL_GPU), command=[sys.executable, "-c", "raise SystemExit('no torch here')"]) as worker,
        pytest.raises(UnsupportedError, match="cannot start: no torch here"),
    ):
        worker.ask({})


def _described(*, place: str, keeps_gradients: bool = False, has_earlier: bool = False) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    with Catcher(found.append):
        model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 1))
        optimizer = torch.optim.SGD(model.parameters())
        if has_earlier:
            model(torch.zeros(2, 1000))
        if place == "before_forward":
            optimizer.zero_grad(not keeps_gradients)
        loss = model(torch.zeros(8, 1000)).sum()
        if place == "before_backward":
            model.zero_grad(set_to_none=not keeps_gradients)
        loss.backward()
    return found[0]


@pytest.mark.parametrize("place", ["before_forward", "before_backward", "later"])
def test_a_description_says_when_gradients_are_set_to_zero(place: str) -> None:
    assert _described(place=place)["zero_grad"] == place


def test_a_description_says_what_came_before_the_first_step() -> None:
    assert _described(place="before_forward")["earlier_bytes"] == 0
    earlier = _described(place="before_forward", has_earlier=True, keeps_gradients=True)
    assert earlier["zero_grad"] == "before_forward"
    assert earlier["keeps_gradients"]
    assert earlier["earlier_bytes"] == 2 * 8192  # input and result of the ReLU, in blocks of 512 bytes
    assert earlier["saved_bytes"] == 2 * 32_256


def test_what_trees_see_of_the_batch_only_rises_or_only_falls() -> None:
    """All else stays as it is, whatever the batch."""
    for row in dataset.read(dataset.SAMPLE):
        for card in ("a100-40gb", "rtx-4060"):
            gpu = gpus.find(card)
            before: list[float] | None = None
            for batch_size in (1, 2, 3, 7, 20, 64, 65, 300, 1000, 5000):
                job = row.features.with_batch(batch_size)
                found = vectors.vector(job, gpu, own.point_of(job, gpu))
                signs = vectors.constraints("complete")
                for name, sign, old, new in zip(vectors.names("complete"), signs, before or found, found, strict=True):
                    if sign:
                        assert sign * (new - old) >= -1e-9, (name, batch_size, row.draw)
                    else:
                        assert new == pytest.approx(old, rel=0.02, abs=0.11), (name, batch_size, row.draw)
                before = found


def test_a_larger_batch_never_gets_a_smaller_guess() -> None:
    model = estimator.shipped()
    for row in dataset.read(dataset.SAMPLE):
        for card in ("a100-40gb", "rtx-4060"):
            jobs = [row.features.with_batch(size) for size in (*range(8, 200, 7), 1000, 10_000, 100_000)]
            guesses = model.guess_all([(job, gpus.find(card)) for job in jobs])
            sizes = [each.reserved_bytes for each in guesses if each is not None]
            assert sizes == sorted(sizes), row.draw
            assert len(sizes) == len(jobs)
