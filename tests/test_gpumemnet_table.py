"""The table of `make gpumemnet`: GPUMemNet's networks beside what its authors published."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None or find_spec("sklearn") is None:  # not imported here: that takes seconds
    pytest.skip("torch or scikit-learn is not installed", allow_module_level=True)

from benchmarks import gpumemnet as table
from tests.test_published_learned import examples

from foretell.learn.classes import Scores
from foretell.units import GIB


def a_result(estimator: str = "mlp", **changes: object) -> table.Result:
    one = Scores(num_jobs=4, accuracy=0.5, precision=0.4, recall=0.5, f1=0.3, too_low=0.25, confusion=((1, 1), (1, 1)))
    two = Scores(num_jobs=2, accuracy=1.0, precision=1.0, recall=1.0, f1=1.0, too_low=0.0, confusion=((2,),))
    given = {"set": "cnn_a100", "family": "cnn", "num_jobs": 6, "class_bytes": 8 * GIB, "seconds": 1.0, **changes}
    return table.Result(estimator=estimator, folds=(one, two), **given)  # type: ignore[arg-type]


def test_a_row_has_the_means_of_the_folds_and_the_published_one_is_below() -> None:
    ours, theirs = table.table([a_result()])
    assert ours == (
        "cnn_a100", "MLP ensemble", "6", "8.00 GiB", "75.00 %", "50.0, 100.0", "0.700", "0.750", "0.650", "12.50 %",
    )  # fmt: skip
    assert theirs[1] == "as published"
    assert theirs[4] == "79.65 %"
    assert a_result().confusion == [[3, 1], [1, 1]]


def test_the_published_means_are_those_of_the_folds_in_the_authors_repository() -> None:
    """Accuracies of Ensemble/k_fold_results, fold by fold."""
    folds = {
        ("mlp", "mlp"): (0.98, 0.97714, 0.97143), ("mlp", "transformer"): (0.98857, 0.97857, 0.98429),
        ("cnn", "mlp"): (0.81842, 0.77763, 0.79342), ("cnn", "transformer"): (0.81316, 0.78947, 0.80592),
        ("transformer", "mlp"): (0.87169, 0.83490, 0.83832),
        ("transformer", "transformer"): (0.84003, 0.86228, 0.87254),
    }  # fmt: skip
    assert {key: each.accuracy for key, each in table.PUBLISHED.items()} == {
        key: pytest.approx(sum(each) / 3, abs=1e-4) for key, each in folds.items()
    }


def test_a_regression_is_put_into_classes_and_cannot_say_out_of_memory() -> None:
    found = table.regressed(examples(120), class_bytes=GIB, num_folds=3, seed=0)
    assert [each.num_jobs for each in found] == [40] * 3
    assert min(each.accuracy for each in found) > 0.5
    assert all(row[-1] == 0 for each in found for row in each.confusion)


def test_the_page_has_confusion_matrices_and_both_projections() -> None:
    pytest.importorskip("plotly")
    text = table.page([a_result(set="mlp_a100", family="mlp")], {"mlp_a100": examples(40)}, None)
    for heading in ("MLP ensemble, confusion", "PCA of the totals", "t-SNE of the totals"):
        assert f"<h2>mlp_a100: {heading}</h2>" in text


@pytest.mark.parametrize(("option", "message"), [("sets", "unknown set oracle"), ("estimators", "unknown oracle")])
def test_an_unknown_name_is_a_usage_error(option: str, message: str, tmp_path: Path) -> None:
    given = {"sets": "mlp_a100", "estimators": "mlp", option: "oracle"}
    with pytest.raises(table.UsageError, match=message):
        table.run(argparse.Namespace(ground_truth=tmp_path, **given))
