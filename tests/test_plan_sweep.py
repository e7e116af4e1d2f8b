"""A grid of knobs, with made-up runs; and a real one."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell import gpus
from foretell.api import need_of
from foretell.cli.main import main
from foretell.errors import ScriptError, UsageError
from foretell.jobs import Job
from foretell.plan import sweep as module
from foretell.plan import sweep_report
from foretell.plan.knobs import Argument, Setting, Variable
from foretell.plan.sweep import Point, Sweep, sweep
from foretell.units import GIB, MIB
from made_up_runs import estimate_of, made_up

BATCH, LENGTH = Argument("--batch-size"), Argument("--seq-len")
JOB = Job(command=("train.py",), gpu=gpus.find("rtx-3060"))
GRID = [(BATCH, ["8", "16", "32"]), (LENGTH, ["512", "1024"])]


def product(job: Job) -> int:
    batch, length = int(BATCH.value_in(job) or 0), int(LENGTH.value_in(job) or 0)
    if batch == 8 and length == 1024:
        raise ScriptError("the script itself failed at train.py:3: ValueError: odd\n  Traceback")
    return batch * length * MIB


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], int]], Any]:
    def use(need: Callable[[Job], int]) -> Any:
        kind = made_up(need)
        monkeypatch.setattr(module, "Variants", kind)
        return kind

    return use


@pytest.fixture
def found(runs: Any) -> Sweep:
    runs(product)
    return sweep(JOB, GRID)


def test_every_combination_has_a_verdict_and_what_it_needs(found: Sweep) -> None:
    shown = [(*point.values, point.verdict, point.reserved_bytes) for point in found.points]
    assert shown == [
        ("8", "512", "fits", 4 * GIB), ("8", "1024", "failed", None), ("16", "512", "fits", 8 * GIB),
        ("16", "1024", "does not fit", 16 * GIB), ("32", "512", "does not fit", 16 * GIB),
        ("32", "1024", "does not fit", 32 * GIB),
    ]  # fmt: skip
    assert found.fits
    assert not found.without_effect


def test_what_does_not_fit_is_run_again_only_if_wanted(runs: Any) -> None:
    kind = runs(product)
    found = sweep(JOB, GRID, finds_need=False)
    assert len(kind.asked) == 6
    assert [point.device_bytes for point in found.points if point.verdict == "does not fit"] == [None] * 3


def test_a_knob_without_effect_is_named(runs: Any) -> None:
    runs(lambda job: int(BATCH.value_in(job) or 0) * MIB)
    found = sweep(JOB, [*GRID, (Variable("SEED"), ["1"])])
    assert found.without_effect == (LENGTH,)
    (note,) = sweep_report.notes_of(found)
    assert note == "--seq-len has no effect: the memory is the same with each of its values"


def test_csv_and_json_have_every_point(found: Sweep) -> None:
    rows = list(csv.DictReader(io.StringIO(sweep_report.to_csv(found))))
    document = json.loads(sweep_report.to_json(found))
    assert len(rows) == len(document["points"]) == 6
    assert rows[2]["--batch-size"] == "16"
    assert int(rows[2]["reserved_bytes"]) == document["points"][2]["reserved_bytes"] == 8 * GIB
    assert rows[1]["device_bytes"] == ""
    assert rows[1]["problem"] == "the script itself failed at train.py:3: ValueError: odd"
    assert document["points"][5]["values"] == {"batch_size": 32, "seq_len": 1024}
    assert document["points"][5]["need"]["reserved_bytes"] == 32 * GIB
    assert document["points"][0]["estimate"]["peak"]["reserved_bytes"] == document["points"][0]["reserved_bytes"]
    assert document["points"][0]["spare_bytes"] == JOB.gpu.total_bytes - 4 * GIB - 300 * MIB


def test_a_page_has_a_curve_for_each_value_of_the_other_knob_and_the_cards(found: Sweep) -> None:
    pytest.importorskip("plotly")
    page = sweep_report.to_html(found)
    for text in ("--seq-len 512", "--seq-len 1024", "rtx-3060 (11.76 GiB)", "rtx-5090", "ValueError: odd"):
        assert text in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=.http", page)
    assert "b200 (" not in page  # far above all points
    assert "b200 (" in sweep_report.to_html(found, cards=[gpus.find("b200")])


def test_a_page_of_words_has_a_chart_as_well(runs: Any) -> None:
    pytest.importorskip("plotly")
    sizes = {(): 3, ("optimizer=adafactor",): 2}
    runs(lambda job: sizes[job.options.alternatives] * GIB)
    found = sweep(JOB, [(Setting("optimizer"), ["script", "adafactor"])])
    assert [point.reserved_bytes for point in found.points] == [3 * GIB, 2 * GIB]
    assert '"adafactor"' in sweep_report.to_html(found)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([], "no knob given"),
        ([(BATCH, [""])], "--batch-size: no values given"),
        ([(BATCH, ["8", "8"])], "--batch-size: the value 8 is given twice"),
        ([(BATCH, ["8"]), (BATCH, ["16"])], "--batch-size is given twice"),
        ([(BATCH, list(map(str, range(101)))), (LENGTH, list(map(str, range(100))))], "10100 combinations are more"),
        ([(Setting("precision"), ["int4"])], "--precision int4: must be one of script, bfloat16, float16"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(grid: Any, message: str, runs: Any) -> None:
    kind = runs(product)
    with pytest.raises(UsageError, match=message):
        sweep(JOB, grid)
    assert not kind.asked


def test_a_script_that_refuses_or_fails_everywhere_is_told(runs: Any) -> None:
    def fail(job: Job) -> int:
        raise ScriptError(text)

    runs(fail)
    text = "the script itself ended with exit code 2\n  train.py: error: unrecognized arguments: --batch-size 8"
    with pytest.raises(UsageError, match=r"does not accept --batch-size, --seq-len: train\.py: error: unrecognized"):
        sweep(JOB, GRID)
    text = "the script itself failed: ValueError"
    with pytest.raises(ScriptError, match="fails with every value of --batch-size, --seq-len"):
        sweep(JOB, GRID)


def a_sweep() -> Sweep:
    """For the golden texts."""

    def point(values: tuple[str, ...]) -> Point:
        job = LENGTH.set(BATCH.set(JOB, values[0]), values[1])
        try:
            estimate = estimate_of(job, product(job))
        except ScriptError as error:
            return Point(values=values, verdict="failed", estimate=None, problem=str(error))
        verdict = "fits" if estimate.oom is None else "does not fit"
        need = None if estimate.oom is None else need_of(estimate)
        return Point(values=values, verdict=verdict, estimate=estimate, need=need)  # type: ignore[arg-type]

    combinations = itertools.product(*(values for _, values in GRID))
    return Sweep(job=JOB, knobs=(BATCH, LENGTH), points=tuple(map(point, combinations)))


SCRIPT = """
import os, sys, torch
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(int(sys.argv[1]), int(os.environ["WIDTH"]), device="cuda").view(-1, 4096)).sum().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("in_forks")
def test_a_real_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--gpu", "1GiB,sm89", "--arg={N}=64,60000", "--env", "WIDTH=4096", "--optimizer", "script,adafactor"]
    code = main(["sweep", *words, "--csv", "-", "train.py", "{N}"])
    said = capfd.readouterr()
    assert code == 0, said.err
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [row["verdict"] for row in rows] == ["fits", "fits", "does not fit", "does not fit"]
    assert int(rows[1]["reserved_bytes"]) < int(rows[0]["reserved_bytes"])
    assert int(rows[2]["device_bytes"]) > 1 << 30
