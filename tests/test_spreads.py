"""Conformal intervals on residuals that are made up."""

from __future__ import annotations

import random
from math import exp, log

import pytest

from foretell.learn import spreads
from foretell.learn.spreads import MEASURED, MemoryResidual, Residual
from foretell.units import GIB


def residuals(values: list[float], *, group: str = "", source: str = "labels") -> list[Residual]:
    return [
        Residual(stratum="cnn", source=source, group=group or str(i), value=value) for i, value in enumerate(values)
    ]


def memory(values: list[float]) -> list[MemoryResidual]:
    return [
        MemoryResidual(stratum="cnn", source="labels", group=str(i), value=value, base_bytes=4 * GIB, class_bytes=GIB)
        for i, value in enumerate(values)
    ]


def test_a_quantile_is_one_rank_further_out_than_that_of_the_sample() -> None:
    values = [float(i) for i in range(1, 100)]  # 99 of them: rank 97.5 of 100 is the 98th
    assert spreads.conformal(residuals(values), 0.975) == 98
    assert spreads.conformal(residuals(values), 0.025) == 2


def test_too_few_residuals_give_the_largest() -> None:
    assert spreads.interval(residuals([0.1, -0.2, 0.3])) == (-0.2, 0.3)


def test_the_runs_of_one_architecture_count_as_one() -> None:
    """Fifty runs of a net that is off by 1 are not half of what may come."""
    others = residuals([0.0] * 50)
    assert spreads.conformal([*others, *residuals([1.0] * 50, group="one")], 0.95) == 0.0
    apart = [Residual(stratum="cnn", source="labels", group=f"other-{i}", value=1.0) for i in range(50)]
    assert spreads.conformal([*others, *apart], 0.95) == 1.0


def test_an_interval_holds_for_architectures_that_nobody_has_seen() -> None:
    """That of 60 architectures with one to ten runs each holds for 95 % of the runs of others."""
    generator = random.Random(0)

    def drawn(number: int) -> list[Residual]:
        middle = generator.gauss(0, 0.1)
        return residuals(
            [middle + generator.gauss(0, 0.02) for _ in range(generator.randint(1, 10))], group=f"net-{number}"
        )

    inside = []
    for _ in range(200):
        low, high = spreads.interval([each for number in range(60) for each in drawn(number)])
        inside += [low <= each.value <= high for number in range(3) for each in drawn(number)[:1]]
    assert 0.93 < sum(inside) / len(inside) < 0.99


def test_the_widest_source_counts_and_small_ones_are_taken_together() -> None:
    wide = [each for number in range(200) for each in residuals([0.5], group=str(number), source=f"{MEASURED}a100")]
    narrow = residuals([0.01] * 200)
    assert spreads.interval([*wide, *narrow]) == (0.01, 0.5)
    few = residuals([0.9], source=f"{MEASURED}one") + residuals([0.8], source=f"{MEASURED}two")
    sizes = {name: len(each) for name, each in spreads.by_source([*narrow, *few]).items()}
    assert sizes == {"labels": 200, MEASURED: 2}


def test_a_bound_is_as_high_as_two_percent_of_classes_ask_for() -> None:
    """Of 999 jobs of 4 GiB, 40 need half a class more: half of these would be in a class above, wherever its edges are,
    which is 2.0 % of the jobs; the correction for a finite sample allows 19 of them."""
    half = log(4.5 / 4)
    found = spreads.bound(memory([0.0] * 959 + [half] * 40))
    missing = 40 * (4.5 - 4 * exp(found))
    assert missing <= 0.02 * 1000 - 1
    assert found == pytest.approx(log((4.5 - 19 / 40) / 4), abs=0.006)
    assert spreads.bound(memory([0.0] * 999)) == 0.0


def test_a_bound_from_a_few_jobs_is_too_low_for_none() -> None:
    assert spreads.bound(memory([0.0] * 20 + [0.1])) == pytest.approx(0.1, abs=0.005)
