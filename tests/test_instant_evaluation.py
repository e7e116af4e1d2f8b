"""Instant estimators judged on measured runs that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.test_formulas import JOB

from foretell import gpus
from foretell.errors import UsageError
from foretell.evaluation import instant, trained
from foretell.evaluation.records import Case
from foretell.features import Guess, JobFeatures, plain_features
from foretell.formulas import Formula
from foretell.formulas.device import beside_bytes
from foretell.learn import train
from foretell.learn.dataset import Row
from foretell.learn.draws import head_of
from foretell.learn.train import Labelled
from foretell.runs import Store
from foretell.units import GIB, MIB


def a_case(number: int, measured_bytes: int, *, is_oom: bool = False, set: str = "cnn_a100") -> Case:
    return Case(
        key=f"{set}/{number}", set=set, workload="mlp.py", arguments=("--batch-size", "100"), gpu="a100-40gb",
        measured_bytes=measured_bytes, is_oom=is_oom, context_bytes=GIB,
    )  # fmt: skip


def figures_of(cases: list[Case], estimate: int | None, job: JobFeatures | str = JOB) -> instant.ClassFigures:
    estimators = {"one": Formula("one", lambda features, gpu: estimate)}
    judged, _ = instant.judge(cases, {case.key: job for case in cases}, estimators)  # type: ignore[arg-type]
    (found,) = instant.class_figures(judged)
    return found


def test_classes_are_eight_gib_wide_and_out_of_memory_is_one() -> None:
    cases = [a_case(1, 3 * GIB), a_case(2, 9 * GIB), a_case(3, 20 * GIB, is_oom=True)]
    found = figures_of(cases, 2 * GIB)  # and one of context
    assert (found.class_bytes, found.accuracy, found.too_low) == (8 * GIB, pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert figures_of(cases, 45 * GIB).accuracy == pytest.approx(1 / 3)


def test_classes_of_mlps_are_one_gib_wide() -> None:
    assert figures_of([a_case(1, 3 * GIB + 5, set="mlp_a100")], 2 * GIB).accuracy == 1
    assert figures_of([a_case(1, 3 * GIB - 5, set="mlp_a100")], 2 * GIB).accuracy == 0


def test_a_job_that_could_not_be_described_is_an_error_of_all_of_it() -> None:
    case = a_case(1, 3 * GIB)
    judged, _ = instant.judge([case], {case.key: "no forward"}, {"one": Formula("one", lambda features, gpu: GIB)})  # type: ignore[dict-item]
    assert judged[0].error == -1.0
    assert next(instant.class_figures(judged)).num_answers == 0


def test_an_estimator_without_an_answer_has_no_error_and_no_class() -> None:
    found = figures_of([a_case(1, 3 * GIB)], None)
    assert (found.num_answers, found.accuracy, found.too_low) == (0, 0, 0)


def test_context_and_libraries_are_added_but_to_numbers_of_the_whole_card() -> None:
    case = a_case(1, 3 * GIB)

    class Whole:
        name = "whole"

        def guess(self, features: JobFeatures, gpu: object) -> Guess:
            return Guess(estimator="whole", reserved_bytes=GIB, is_whole_device=True)

    estimators = {"part": Formula("part", lambda features, gpu: GIB), "whole": Whole()}
    judged, _ = instant.judge([case], {case.key: JOB}, estimators)  # type: ignore[arg-type]
    libraries = beside_bytes(JOB, gpus.find(case.gpu), context_bytes=GIB)
    assert [each.num_bytes for each in judged] == [2 * GIB + libraries, GIB]


def test_a_bound_is_a_tool_of_its_own() -> None:
    case = a_case(1, 3 * GIB)
    judged, bounds = instant.judge([case], {case.key: JOB}, instant.parse_estimators("guess"))
    assert [each.tool for each in judged + bounds] == ["guess", "guess, bound"]
    assert (bounds[0].num_bytes or 0) >= (judged[0].num_bytes or 0)


def test_measured_rows_leave_out_context_and_failed_runs() -> None:
    cases = [a_case(1, 3 * GIB + 7 * MIB), a_case(2, 39 * GIB, is_oom=True)]
    (row,) = instant.measured_rows(cases, {case.key: replace(JOB) for case in cases})
    libraries = beside_bytes(JOB, gpus.find("a100-40gb"), context_bytes=GIB)
    assert (row.reserved_bytes, row.source, row.gpu) == (2 * GIB + 7 * MIB - libraries, "cnn_a100", "a100-40gb")


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(UsageError, match="Known: guess, horus, dnnmem"):
        instant.parse_estimators("oracle")


def test_a_job_is_described_again_when_its_script_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def describe_scripts(scripts: list[tuple[Path, tuple[str, ...]]], *, workers: int) -> Iterator[tuple[int, object]]:
        for number, (path, _) in enumerate(scripts):
            asked.append(path.name)
            yield number, {"features": plain_features(JOB)}

    monkeypatch.setattr(instant, "describe_scripts", describe_scripts)
    monkeypatch.setattr(instant, "WORKLOADS", tmp_path)
    cases = [a_case(1, GIB), a_case(2, GIB)]
    for text in ("first", "first", "second"):
        (tmp_path / "mlp.py").write_text(text)
        instant.digest_of.cache_clear()
        store = Store(tmp_path / "descriptions.jsonl", state="")
        found = instant.describe(cases, store, workers=1, on_progress=lambda done, total: None)
        store.close()
        assert set(found) == {"cnn_a100/1", "cnn_a100/2"}
    assert asked == ["mlp.py", "mlp.py"]  # both cases are one job


@pytest.mark.parametrize(
    ("model", "head"),
    [("tf_efficientnet_b0", "efficientnet"), ("wide_resnet50_2", "resnet"), ("facebook/opt-125m", "opt"), ("", "")],
)
def test_names_of_an_architecture_have_a_head(model: str, head: str) -> None:
    assert head_of(model) == head


@pytest.mark.parametrize(
    ("group", "is_relative"),
    [("timm-resnet", True), ("torchvision-seresnet", True), ("language_model-gpt", True), ("timm-vgg", False),
     ('["cnn", 3]', False), ("mlp_a100-mlp_a100/4", False)],
)  # fmt: skip
def test_labels_of_the_judged_architectures_are_known_by_their_group(group: str, is_relative: bool) -> None:
    assert trained.is_relative(group, ["seresnet50", "openai-community/gpt2"]) is is_relative


def test_a_run_is_judged_without_the_labels_of_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without itself among the measured runs."""
    seen: list[tuple[set[str], set[str]]] = []

    def card_of(trained: object, rows: list[Row], measured: list[Labelled]) -> dict[str, str]:
        seen.append(({row.group for row in rows}, {each.features.name for each in measured}))
        return {}

    monkeypatch.setattr(train, "train", lambda rows: SimpleNamespace(models={}))
    monkeypatch.setattr(train, "card_of", card_of)
    names = ("resnet50", "vgg16", "densenet121")
    cases = [
        replace(a_case(i, GIB), arguments=("--model", name, "--batch-size", "8")) for i, name in enumerate(names)
    ]
    labels = [a_row(f"timm-{name}") for name in ("resnet", "vgg", "densenet", "vit")]
    measured = [replace(a_row(f"cnn_a100-{i}"), features=replace(JOB, name=case.key)) for i, case in enumerate(cases)]
    found = trained.own_held_out(cases, labels, measured, num_folds=3)
    assert sorted(found.estimators) == [case.key for case in cases]
    assert [groups | {"timm-vit"} for groups, _ in seen] == [groups for groups, _ in seen]
    assert {frozenset({"timm-resnet", "timm-vgg", "timm-densenet"} - groups) for groups, _ in seen} == {
        frozenset({"timm-resnet"}), frozenset({"timm-vgg"}), frozenset({"timm-densenet"})
    }  # fmt: skip
    assert all(len(keys) == 2 for _, keys in seen)


def a_row(group: str) -> Row:
    return Row(
        kind="timm", group=group, gpu="400GiB,sm80", torch="2.6.0", source="virtual", draw="", features=JOB,
        reserved_bytes=GIB,
    )  # fmt: skip
