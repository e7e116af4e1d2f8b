"""The table of `make instant`, on figures that are made up."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from tests.test_instant_evaluation import a_case

if find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from benchmarks import instant as table

from foretell.evaluation.instant import InstantFigures


def figures(name: str, **changes: float | None) -> InstantFigures:
    given = InstantFigures(
        set=name, tool="guess", num_runs=100, num_errors=90, median_error=0.02, p90_error=0.1, mean_abs_error=0.03,
        bias=0.0, interval_coverage=0.95, interval_width=0.3, class_bytes=1, class_accuracy=0.9, class_too_low=0.01,
        num_without_answer=0,
    )  # fmt: skip
    return replace(given, **changes)  # type: ignore[arg-type]


def judged(**changes: float | None) -> dict[str, str]:
    best = {name: figures(name, **changes) for name in table.MEMORY}
    return {goal.what: goal.reached + goal.row[3][-2:] for goal in table.of_memory(table.Judged(best, best, {}))}


def test_a_goal_that_is_missed_is_marked() -> None:
    found = judged(median_error=0.03, class_accuracy=0.92)
    assert found["CNN, class of 8 GiB / median error"] == "92 % / 3 % ✓"
    assert found["MLP, class of 1 GiB / median error"] == "92 % / 3 % ✗"
    assert found["timm, median / p90 error"] == "3 % / 10 % ✓"
    assert judged(p90_error=0.15)["timm, median / p90 error"] == "2 % / 15 % ✗"


def test_an_interval_may_hold_too_often_as_well() -> None:
    what = "95 % interval, cnn_rtx: inside / median width"
    assert judged()[what] == "95 % / 30 % ✓"
    assert judged(interval_coverage=1.0)[what] == "100 % / 30 % ✗"
    assert judged(interval_width=0.5)[what] == "95 % / 50 % ✗"


def test_of_several_sets_classes_are_counted_and_the_largest_median_stands() -> None:
    by_set = {"a": figures("a", class_accuracy=1.0, median_error=0.01), "b": figures("b", class_accuracy=0.8)}
    goal = table.classes("both", by_set, ("a", "b", "not there"), (0.9, 0.02), (1.0, 0.0))
    assert (goal.reached, goal.is_met, goal.num_runs) == ("90 % / 2 %", True, 200)


def test_only_kept_rows_are_judged() -> None:
    cases = [a_case(number, 2**30) for number in range(1, 9)]
    assert {case.key for case in table.sampled(cases, 3, 0)} <= {f"cnn_a100/{number}" for number in (1, 3, 5, 7)}
    assert len(table.sampled(cases, 3, 0)) == 3
