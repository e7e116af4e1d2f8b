"""Passes of an evaluation that repeat themselves are left out of the memory history, and nothing else changes."""

from __future__ import annotations

import marshal
from array import array
from itertools import accumulate
from typing import Any

from capture_folder import CaptureFolder
from foretell.analysis.verdict import estimate_of
from foretell.inside.watch.history import ENTRIES_PER_WINDOW
from foretell.inside.watch.repetitions import Counters, Repetitions
from foretell.protocol.history import ACTIONS

from .conftest import Captured, Run

Move = tuple[str, int, int]


def moves(*addresses: int) -> list[Move]:
    """Each address is allocated and freed again."""
    return [(action, address, 512) for address in addresses for action in ("alloc", "free_requested", "free_completed")]


def remove(passes: list[list[Move]], *, training: int | None = None, held: int = 0) -> tuple[list[int], list[Any]]:
    """The numbers of the passes that stay, and the repetitions. One of them may be training; each may hold bytes."""
    repetitions = Repetitions()
    entries, counts = [], [0, *accumulate(sum(action == "alloc" for action, _, _ in each) for each in passes)]
    for number, each in enumerate(passes):
        repetitions.begins(Counters(counts[number], number * held, 2 << 20), is_pass=number != training)
        keys = ("action", "addr", "size")
        entries += [{**dict(zip(keys, move, strict=True)), "stream": 0, "pass": number} for move in each]
    last = Counters(counts[-1], len(passes) * held, 2 << 20)
    repetitions.begins(last, is_pass=True)
    kept, repeated = repetitions.remove(entries, 0, last)
    return sorted({entry["pass"] for entry in kept}), repeated


def test_a_pass_that_repeats_the_two_before_it_is_left_out() -> None:
    assert remove([moves(0), moves(0, 512), moves(0, 512), moves(0, 512), moves(0, 512)]) == (
        [0, 1, 2],
        [(5, 2), (5, 2)],
    )


def test_a_pass_at_another_address_stays() -> None:
    assert remove([moves(0), moves(0), moves(512), moves(0)]) == ([0, 1, 2, 3], [])


def test_passes_that_alternate_between_two_addresses_are_left_out_in_pairs() -> None:
    assert remove([moves(0), moves(512)] * 3 + [moves(0)]) == ([0, 1, 2, 3, 6], [(4, 2)])


def test_a_pass_that_leaves_more_bytes_stays() -> None:
    assert remove([moves(0)] * 4, held=512) == ([0, 1, 2, 3], [])


def test_training_is_never_left_out() -> None:
    assert remove([moves(0)] * 6, training=2) == ([0, 1, 2, 3, 4], [(5, 1)])


def test_what_repeats_is_known_from_one_window_to_the_next() -> None:
    repetitions = Repetitions()
    entries = [{"action": action, "addr": at, "size": size, "stream": 0} for action, at, size in moves(0)]
    repetitions.begins(Counters(0, 0, 0), is_pass=True)
    for number in range(4):
        end = Counters(number + 1, 0, 0)
        repetitions.begins(end, is_pass=True)
        kept, repeated = repetitions.remove(entries, number, end)
        assert (bool(kept), repeated) == ((True, []) if number < 2 else (False, [(0, 1)]))


def test_counters_reset_by_the_script_leave_everything_in() -> None:
    repetitions = Repetitions()
    entries = [{"action": "alloc", "addr": 0, "size": 1, "stream": 0}] * 3
    repetitions.begins(Counters(7, 0, 0), is_pass=True)
    assert repetitions.remove(entries, 7, Counters(2, 0, 0)) == (entries, [])


EVALUATIONS = """
    import sys, torch
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    def train(rows):
        model(torch.zeros(rows, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    train(1000)
    grows = sys.argv[1] == "grows"
    with torch.no_grad():
        for number in range(1000):
            batch = torch.zeros(100 + grows * number, 64, device="cuda")
            outputs = model(batch)
    del batch, outputs
    for _ in range(2):
        train(2000)
"""


def windows(captured: Captured) -> list[Any]:
    files = sorted(captured.directory.glob("history-*.marshal"), key=lambda path: int(path.stem.split("-")[2]))
    return [marshal.loads(file.read_bytes()) for file in files]


def num_allocations(window: Any) -> int:
    return array("B", window["columns"]["action"]).count(ACTIONS.index("alloc"))


def test_an_evaluation_is_written_window_by_window(capture: Run) -> None:
    sizes = [len(window["columns"]["action"]) for window in windows(capture(EVALUATIONS, "grows", steps="all").check())]
    assert len(sizes) > 2
    assert max(sizes) < 2 * ENTRIES_PER_WINDOW


def test_the_estimate_is_the_same_without_the_repetitions(capture: Run) -> None:
    captured = capture(EVALUATIONS, "stays", steps="all").check()
    kept = sum(map(num_allocations, windows(captured)))
    left_out = sum(number for window in windows(captured) for _, number in window["repeated"])
    assert left_out > 19_000 > 2_000 > kept
    estimate = estimate_of(CaptureFolder(captured.directory).trace())
    attribution = estimate.attribution
    assert attribution is not None, estimate.caveats
    assert [step.peak_allocated_bytes for step in estimate.steps] == [
        line["devices"][0]["peak_allocated_bytes"] for line in captured.lines("step")
    ]
    assert {span.phase for span in attribution.spans if span.step == 1} >= {"evaluation", "forward", "backward"}
    blocks = attribution.blocks
    held = {blocks.kinds[blocks.kind[number]].category for number in attribution.at_peak}
    assert held >= {"parameter", "optimizer_state", "activation", "gradient"}
