"""The published estimators that are trained: GPUMemNet, SchedTune and DNNPerf, on jobs made by hand."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.test_formulas import JOB
from tests.test_instant_evaluation import a_case
from tests.test_learn import rows

from foretell import gpus
from foretell.cli import main
from foretell.errors import TraceError, UsageError
from foretell.evaluation import instant, trained
from foretell.features import JobFeatures
from foretell.learn import dataset, methods
from foretell.learn.classes import Example, classes_of, folds, scores
from foretell.units import GIB

A100 = gpus.find("a100-40gb")


def examples(num: int = 60) -> list[Example]:
    """Memory that follows from the batch alone, in three classes of a GiB and out of memory."""
    generator = random.Random(1)
    found = []
    for i in range(num):
        size = generator.choice([40, 400, 4000, 40_000])
        job = replace(JOB.with_batch(generator.randrange(size, 2 * size)), name=f"job-{i}")
        num_bytes = {40: GIB // 2, 400: 3 * GIB // 2, 4000: 5 * GIB // 2, 40_000: 39 * GIB}[size]
        found.append(Example(features=job, num_bytes=num_bytes, is_oom=size == 40_000, group=f"group-{i}"))
    return found


def test_running_out_of_memory_is_a_class_above_all_others() -> None:
    given = [Example(features=JOB, num_bytes=size * GIB, is_oom=size == 1, group="") for size in (3, 1, 7)]
    assert classes_of(given, 2 * GIB) == [1, 4, 3]


def test_folds_are_even_keep_groups_together_and_are_always_the_same() -> None:
    groups = [f"group-{i // 3}" for i in range(60)]
    found = folds(groups, 4)
    assert [found.count(fold) for fold in range(4)] == [15] * 4
    assert len(set(zip(groups, found, strict=True))) == 20
    assert folds(groups, 4) == found != folds(groups, 4, seed=1)


@pytest.mark.parametrize(("num", "groups"), [(1, ["a", "b"]), (3, ["a", "a", "b"])])
def test_folds_that_cannot_be_are_refused(num: int, groups: list[str]) -> None:
    with pytest.raises(UsageError, match="folds"):
        folds(groups, num)


def test_scores_are_those_of_a_case_worked_out_by_hand() -> None:
    pytest.importorskip("sklearn")
    found = scores([0, 0, 1, 2], [0, 1, 1, 1])
    assert found.confusion == ((1, 1, 0), (0, 1, 0), (0, 1, 0))
    assert (found.accuracy, found.too_low) == (0.5, 0.25)
    assert found.precision == pytest.approx((2 * 1 + 1 * (1 / 3) + 0) / 4)
    assert found.recall == pytest.approx(0.5)
    assert found.f1 == pytest.approx((2 * (2 / 3) + 0.5 + 0) / 4)


# --- GPUMemNet --------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpumemnet() -> Any:
    pytest.importorskip("torch")
    from foretell.learn import gpumemnet

    return gpumemnet


def test_activation_functions_lie_on_a_half_circle(gpumemnet: Any) -> None:
    layers = JOB.layers or ()
    points = [
        gpumemnet.encoded_activation(replace(JOB, layers=(layers[0], replace(layers[1], kind=kind))))
        for kind in gpumemnet.ACTIVATIONS
    ]
    assert len(set(points)) == 11
    assert all(math.hypot(*point) == pytest.approx(1) and point[0] >= 0 for point in points)
    assert gpumemnet.encoded_activation(replace(JOB, layers=(layers[0],))) == (0.0, 0.0)


def test_totals_are_those_of_the_layers(gpumemnet: Any) -> None:
    found = dict(zip(gpumemnet.TOTALS, gpumemnet.totals(JOB), strict=True))
    assert (found["layers"], found["num_Linear"], found["num_Conv"]) == (3, 2, 0)
    assert found["log_activations"] == pytest.approx(math.log1p(1010))
    assert found["log_activations_x_batch"] == pytest.approx(math.log1p(101_000))
    assert found["log_parameters"] == pytest.approx(math.log1p(505_510))


@pytest.mark.parametrize(("kind", "epochs"), [("mlp", 120), ("transformer", 40)])
def test_networks_learn_classes_that_follow_from_the_batch(gpumemnet: Any, kind: str, epochs: int) -> None:
    pytest.importorskip("sklearn")
    settings = gpumemnet.Settings(kind=kind, members=1, epochs=epochs, width=16, batch_size=16, learning_rate=0.01)
    found = gpumemnet.cross_validate(examples(), settings, class_bytes=GIB, num_folds=2)
    assert [each.num_jobs for each in found] == [30, 30]
    assert min(each.accuracy for each in found) >= 0.9
    assert min(each.confusion[3][3] for each in found) > 0  # out of memory


def test_each_fold_is_answered_by_a_model_of_the_other_folds(gpumemnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    given = examples()
    trainings: list[set[str]] = []
    judged: list[set[str]] = []

    class Ensemble:
        has_oom = False
        num_classes = 1

        def classes(self, jobs: list[JobFeatures]) -> list[int]:
            judged.append({job.name for job in jobs})
            return [0] * len(jobs)

    def train(known: list[Example], *args: object, **kwargs: object) -> Ensemble:
        trainings.append({each.features.name for each in known})
        return Ensemble()

    monkeypatch.setattr(gpumemnet, "train", train)
    gpumemnet.cross_validate(given, gpumemnet.Settings(), class_bytes=GIB, num_folds=3)
    everything = {each.features.name for each in given}
    assert [seen | tested for seen, tested in zip(trainings, judged, strict=True)] == [everything] * 3
    assert not any(seen & tested for seen, tested in zip(trainings, judged, strict=True))
    assert set.union(*judged) == everything


def test_an_answer_is_the_upper_edge_of_a_class_and_says_so(gpumemnet: Any) -> None:
    import torch

    class Always(torch.nn.Module):  # type: ignore[misc]
        def forward(self, totals: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0.0, 1.0, 0.0]]).expand(len(totals), 3) + self.shift

    member = Always()
    for shift, num_bytes, note in (([0, 0, 0], 2 * GIB - 1, "between 1.00 GiB"), ([0, 0, 9], 0, "ran out of memory")):
        member.shift = torch.tensor([shift], dtype=torch.float32)
        ensemble = gpumemnet.Ensemble("mlp", 64, GIB, 3, True, [member])
        guess = gpumemnet.GpuMemNet({"mlp": ensemble}, True).guess(JOB, A100)
        assert guess.reserved_bytes == (num_bytes or A100.total_bytes + 1)
        assert note in guess.notes[0]
    assert gpumemnet.GpuMemNet({}, True).guess(JOB, A100) is None


def test_training_leaves_the_random_state_and_too_few_jobs_are_named(gpumemnet: Any) -> None:
    import torch

    before = torch.random.get_rng_state()
    gpumemnet.train(examples(), gpumemnet.Settings(members=1, epochs=1), class_bytes=GIB)
    assert torch.equal(before, torch.random.get_rng_state())
    with pytest.raises(UsageError, match="needs 30 or more jobs of a family with layers and a batch size; there are 5"):
        gpumemnet.train(examples(5), gpumemnet.Settings(), class_bytes=GIB)


# --- all of them ------------------------------------------------------------------------------------------------------


def train_gpumemnet(path: Path) -> Any:
    pytest.importorskip("torch")
    from foretell.learn import gpumemnet

    settings = gpumemnet.Settings(kind="transformer", members=2, epochs=1, width=16)
    model = gpumemnet.train_families(examples(), settings, is_whole_device=False)
    gpumemnet.save(path, model, {})
    return model


def train_schedtune(path: Path) -> Any:
    pytest.importorskip("lightgbm")
    from foretell.learn import schedtune

    model = schedtune.train([row.labelled for row in rows()])
    schedtune.save(path, model, {})
    return model


def train_dnnperf(path: Path) -> Any:
    pytest.importorskip("torch")
    from foretell.learn import dnnperf

    model = dnnperf.train([row.labelled for row in rows(20)], dnnperf.Settings(width=16, epochs=2))
    dnnperf.save(path, model, {})
    return model


ALL: list[Callable[[Path], Any]] = [train_gpumemnet, train_schedtune, train_dnnperf]


@pytest.mark.parametrize("train", ALL)
def test_a_model_answers_the_same_after_it_was_written_and_read(tmp_path: Path, train: Callable[[Path], Any]) -> None:
    model = train(tmp_path / "model")
    read = methods.read(tmp_path / "model.npz")
    assert read.name == model.name == methods.method_of(tmp_path / "model")
    jobs = [JOB.with_batch(size) for size in (1, 100, 10_000)]
    assert [read.guess(job, A100) for job in jobs] == [model.guess(job, A100) for job in jobs]
    assert all(read.guess(job, A100) is not None for job in jobs)
    assert read.guess(replace(JOB, layers=None), A100) is None


@pytest.mark.parametrize("train", ALL)
def test_a_changed_model_is_refused(tmp_path: Path, train: Callable[[Path], Any]) -> None:
    train(tmp_path / "model")
    card = json.loads((tmp_path / "model.json").read_text())
    for change in ({"sha256": "0"}, {"features": 1, "inputs": 1, "width": 99}, {"method": "oracle"}, {"schema": 1}):
        (tmp_path / "model.json").write_text(json.dumps({**card, **change}))
        with pytest.raises(TraceError, match="cannot use the model"):
            methods.read(tmp_path / "model")


def test_trees_never_answer_more_than_the_largest_job_of_their_training(tmp_path: Path) -> None:
    model = train_schedtune(tmp_path / "model")
    largest = max(row.reserved_bytes for row in rows())
    guess = model.guess(JOB.with_batch(10_000_000), rows(1)[0].labelled.gpu)
    assert guess.reserved_bytes <= largest
    assert "never answers more" in guess.notes[0]


def test_the_graph_network_learns_what_follows_from_the_layers() -> None:
    pytest.importorskip("torch")
    from foretell.learn import dnnperf

    known = [row.labelled for row in rows()]
    model = dnnperf.train(known, dnnperf.Settings(width=16, epochs=40))
    guesses = [model.guess(row.features, row.gpu) for row in known]
    errors = [
        abs(guess.reserved_bytes / row.reserved_bytes - 1) for guess, row in zip(guesses, known, strict=True) if guess
    ]
    assert len(errors) == len(known)
    assert statistics.median(errors) < 0.1  # a constant would have 0.39


def test_what_was_trained_is_written_and_its_scores_are_shown(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("lightgbm")
    dataset.write(tmp_path / "labels.csv", rows(20))
    output = str(tmp_path / "trees")
    assert main(["train", str(tmp_path / "labels.csv"), "--method", "schedtune", "--output", output]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["mlp", "encoder", "cnn"]
    assert methods.method_of(tmp_path / "trees") == "schedtune"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "schedtune", "--epochs", "3"], "--epochs does not go with --method schedtune"),
        (["--method", "dnnperf", "--class-size", "1GiB"], "--class-size does not go with --method dnnperf"),
        (["--networks", "mlp"], "--networks does not go with --method foretell"),
        (["--method", "gpumemnet", "--folds", "1"], "--folds 1: must be 2 or more"),
        (["--method", "dnnperf", "--epochs", "0"], "--epochs 0: must be 1 or more"),
    ],
)
def test_options_of_another_method_are_refused(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.write(tmp_path / "labels.csv", rows(1))
    assert main(["train", str(tmp_path / "labels.csv"), "--output", str(tmp_path / "model"), *words]) == 2
    assert message in capsys.readouterr().err


# --- on measured runs -------------------------------------------------------------------------------------------------


def measured_cases(num: int = 120) -> tuple[list[Any], dict[str, JobFeatures | str]]:
    known = examples(num)
    cases = [
        replace(a_case(i, each.num_bytes + GIB, is_oom=each.is_oom, set="mlp_a100"), factors={"model": "abcdef"[i % 6]})
        for i, each in enumerate(known)
    ]
    jobs: dict[str, JobFeatures | str] = {
        case.key: replace(each.features, name=case.key) for case, each in zip(cases, known, strict=True)
    }
    return cases, jobs


def test_a_run_is_judged_by_an_estimator_that_has_not_seen_its_model() -> None:
    pytest.importorskip("lightgbm")
    cases, jobs = measured_cases()
    seen: list[set[str]] = []
    from foretell.learn import schedtune

    real = schedtune.train

    def train(given: Any) -> Any:
        seen.append({each.group for each in given})
        return real(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedtune, "train", train)
        found = trained.held_out("schedtune", cases, jobs, instant.reserved_bytes)
    model_of = {case.key: case.factors["model"] for case in cases}
    assert set(found.estimators) == set(jobs)
    assert len(seen) == 3
    of_fold = list(dict.fromkeys(map(id, found.estimators.values())))
    for key, estimator in found.estimators.items():
        training = seen[of_fold.index(id(estimator))]
        assert model_of[key] not in {model_of[each] for each in training}
    assert not any(case.is_oom for case in cases for training in seen if case.key in training)


def test_untrained_estimators_are_trained_on_the_runs_and_named() -> None:
    pytest.importorskip("lightgbm")
    cases, jobs = measured_cases()
    estimators = instant.parse_estimators("formula,schedtune")
    assert instant.num_trainings(cases, estimators) == 3
    estimators = instant.trained_on(cases, jobs, estimators)
    judged, _ = instant.judge(cases, jobs, estimators)
    figures = {each.tool: each for each in instant.instant_figures(judged)}
    assert list(figures) == ["formula", "schedtune"]
    assert figures["schedtune"].num_without_answer == 0
    assert figures["schedtune"].metric == "memory"
    assert "schedtune: trained on these runs in 3 folds" in instant.about(estimators)


def test_too_few_runs_to_train_on_are_said() -> None:
    pytest.importorskip("torch")
    cases, jobs = measured_cases(12)
    estimators = instant.trained_on(cases, jobs, instant.parse_estimators("gpumemnet"))
    judged, _ = instant.judge(cases, jobs, estimators)
    (figures,) = instant.instant_figures(judged)
    assert (figures.num_without_answer, figures.median_error, figures.class_accuracy) == (12, None, 0)
    assert "gpumemnet cannot be trained on mlp_a100" in instant.about(estimators)


def test_a_job_without_an_answer_is_an_error_where_others_have_one() -> None:
    cases = [a_case(1, 3 * GIB), a_case(2, 3 * GIB)]
    jobs: dict[str, JobFeatures | str] = {cases[0].key: JOB, cases[1].key: JobFeatures(source="typed")}
    judged, _ = instant.judge(cases, jobs, instant.parse_estimators("formula,llmem"))
    formula, llmem = instant.instant_figures(judged)
    assert (formula.num_without_answer, formula.num_errors) == (1, 2)
    assert judged[2].error == -1.0
    assert (llmem.num_without_answer, llmem.num_errors) == (2, 0)  # made for Transformers


def test_a_model_is_for_the_estimator_that_its_card_names(tmp_path: Path) -> None:
    train_schedtune(tmp_path / "trees")
    given = instant.parse_estimators("horus,schedtune", models=[tmp_path / "trees.npz"])
    assert given["schedtune"].guess(JOB, A100) is not None
    with pytest.raises(UsageError, match="a model for schedtune, which is not among --estimators"):
        instant.parse_estimators("guess", models=[tmp_path / "trees"])
    with pytest.raises(UsageError, match="there is another model for schedtune"):
        instant.parse_estimators("schedtune", models=[tmp_path / "trees"] * 2)
