"""Operators people train with, on both engines: every allocation above 64 KiB is the same, in the same order.

The zoo has whole trainings; here the subjects are single operators, many to a script (tests/operators).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.engines import compare

from conftest import HAS_CUDA, TESTS
from foretell.trace import load
from warm_runs import WarmRuns

OPERATORS = TESTS / "operators"
NAMES = sorted(path.stem for path in OPERATORS.glob("*.py") if path.stem != "common")


@pytest.mark.parametrize("name", NAMES)
def test_the_cpu_engine_allocates_what_the_virtual_gpu_does(name: str, warm_runs: WarmRuns, tmp_path: Path) -> None:
    run = warm_runs.run(OPERATORS / f"{name}.py", engine="cpu", trace=tmp_path / "cpu")
    assert run.code == 0, run.tail()
    if not HAS_CUDA:
        return
    run = warm_runs.run(OPERATORS / f"{name}.py", engine="virtual", trace=tmp_path / "virtual")
    assert run.code == 0, run.tail()
    found = compare(load(tmp_path / "virtual"), load(tmp_path / "cpu"))
    assert found.is_within, found
    if not found.has_rule:
        assert found.is_same_sequence, found
