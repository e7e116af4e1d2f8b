"""The steps of a run in another order: replayed, they need what the script needs if it trains in that order."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capture_folder import training_run
from foretell.allocator import CachingAllocator, Device
from foretell.analysis.orders import _cut, _play, interval, random_orders
from foretell.errors import UnsupportedError
from foretell.rules.capacity import Capacity
from foretell.runs import find_torch
from foretell.trace import Trace, load
from foretell.units import MIB
from foretell.virtual import library_paths

if TYPE_CHECKING:
    from warm_runs import WarmRuns

SCRIPT = """
import json, random, sys, torch
from torch import nn
order = json.loads(sys.argv[1])
lengths = [random.Random(i).randrange(100, 2000) for i in range(len(order))]
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.GELU(), nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for number in order:
    x = torch.zeros(lengths[number], 512).cuda()
    logits = model(x)
    loss = logits.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses = [*losses, loss.detach()][-3:]
    if len(sys.argv) > 2 and number % 10 == 9:
        with torch.no_grad():
            model(torch.zeros(3000, 512).cuda())
"""
NUM_STEPS = 30


@pytest.fixture(scope="module")
def runs(warm_runs: WarmRuns) -> WarmRuns:
    if find_torch(sys.executable) is None:
        pytest.skip("torch is not installed")
    try:
        library_paths()
    except UnsupportedError as error:
        pytest.skip(str(error))
    return warm_runs


def trained(runs: WarmRuns, folder: Path, order: list[int], *more: str) -> Trace:
    (folder / "train.py").write_text(SCRIPT)
    runs.run(folder / "train.py", json.dumps(order), *more, trace=folder / "run.trace", cwd=folder)
    return load(folder / "run.trace")


def reserved(trace: Trace) -> int:
    return trace.final[0].peak_reserved_bytes


def test_another_order_needs_what_the_script_needs_in_that_order(runs: WarmRuns, tmp_path: Path) -> None:
    trace = trained(runs, tmp_path, list(range(NUM_STEPS)))
    cut = _cut(trace)
    moved = [number for number, step in enumerate(cut) if not step.is_fixed]
    assert len(moved) >= NUM_STEPS - 6
    peaks = {reserved(trace)}
    for seed in range(3):
        order = list(range(len(cut)))
        for place, step in zip(moved, random.Random(seed).sample(moved, len(moved)), strict=True):
            order[place] = step
        played = CachingAllocator(Device(trace.gpu.total_bytes), trace.allocator)
        again = trained(runs, tmp_path, order[:-1])  # without what comes after the last step
        assert _play(cut, order, played) == reserved(again)
        # Two of the losses that the script keeps for three steps, 512 bytes each, are freed a step or two too early.
        assert again.final[0].peak_allocated_bytes - played.peak_allocated_bytes in (0, 512, 1024)
        peaks.add(reserved(again))
    assert len(peaks) > 1


def test_steps_with_an_evaluation_stay_in_their_places(runs: WarmRuns, tmp_path: Path) -> None:
    trace = trained(runs, tmp_path, list(range(NUM_STEPS)), "evaluation")
    cut = _cut(trace)
    assert [number for number in (10, 20) if not cut[number].is_fixed] == []
    assert sum(not step.is_fixed for step in cut) > NUM_STEPS - 12
    allocator = CachingAllocator(Device(trace.gpu.total_bytes), trace.allocator)
    assert _play(cut, range(len(cut)), allocator) == reserved(trace)


def test_a_card_on_which_some_orders_fit(runs: WarmRuns, tmp_path: Path) -> None:
    trace = trained(runs, tmp_path, list(range(NUM_STEPS)))
    card = Capacity(total_bytes=trace.gpu.total_bytes, context_bytes=0, library_bytes=0)
    free = random_orders(trace, card, num=40, num_processes=1)
    assert free.num_oom == 0
    assert free.oom_high == pytest.approx(0.0881, abs=0.0001)
    assert free.least_reserved_bytes < free.median_reserved_bytes < free.most_reserved_bytes
    sizes = range(free.least_reserved_bytes, 0, -2 * MIB)
    tight = (replace(card, total_bytes=size) for size in sizes)
    first = next(each for each in tight if random_orders(trace, each, num=10, num_processes=2).num_oom)
    orders = random_orders(trace, first, num=10, num_processes=1)
    assert orders == random_orders(trace, first, num=10, num_processes=2)
    assert 0 < orders.oom_low <= orders.num_oom / 10 <= orders.oom_high <= 1


def test_a_run_with_too_few_steps_says_so(tmp_path: Path) -> None:
    card = Capacity(total_bytes=1 << 30, context_bytes=0, library_bytes=0)
    with pytest.raises(UnsupportedError, match="only 1 of 2 steps can be replayed in another order"):
        random_orders(training_run(tmp_path).trace(), card, num=2)


@pytest.mark.parametrize(
    ("count", "num", "low", "high"),
    [(2, 200, 0.00121, 0.03565), (0, 200, 0.0, 0.01828), (200, 200, 0.98172, 1.0), (5, 10, 0.18709, 0.81291)],
)
def test_the_interval_is_that_of_clopper_and_pearson(count: int, num: int, low: float, high: float) -> None:
    assert interval(count, num) == pytest.approx((low, high), abs=1e-5)
