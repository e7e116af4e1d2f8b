"""A loop that waits for an unknown value ends, and the result says so."""

from __future__ import annotations

import textwrap

import pytest

from .conftest import Run

PROLOGUE = """
import torch
linear, x = torch.nn.Linear(64, 64).cuda(), torch.randn(8, 64, device="cuda")
rounds = 0
"""
LOOPS = {
    "while": "while not (linear(x) > 0).all(): rounds += 1",
    "break": "while True:\n    rounds += 1\n    if (linear(x) > 0).all().item(): break",
    "number": "loss = 9.0\nwhile loss > 0.01:\n    rounds += 1\n    loss = linear(x).square().mean().item()",
    "list": "done = [False]\nwhile not all(done):\n    rounds += 1\n    done = (linear(x).sum(1) > 0).tolist()",
    "copy": "while True:\n    rounds += 1\n    if (linear(x) > 0).all().cpu(): break",
    "flag": "done = False\nwhile not done:\n    rounds += 1\n    if (linear(x) > 0).all(): done = True",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_waits_for_an_unknown_value_gets_another_one(capture: Run, loop: str) -> None:
    run = capture(PROLOGUE + LOOPS[loop] + "\nprint(rounds)").check()
    assert 1_000 <= int(run.said[0]) < 1_100
    waits = [line["what"] for line in run.lines("unknown_read") if "decides a loop" in line["what"]]
    assert len(waits) == 1
    assert waits[0].endswith(": decides a loop, after 1,000 rounds in which no peak grew, it got another one")
    assert not run.lines("ended_early")


def test_a_loop_goes_on_while_the_peak_grows(capture: Run) -> None:
    script = """
    kept = []
    while not (linear(x) > 0).all():
        rounds += 1
        if rounds < 1_500:
            kept.append(torch.zeros(200_000, device="cuda"))
    print(rounds)
    """
    run = capture(PROLOGUE + textwrap.dedent(script)).check()
    assert int(run.said[0]) >= 2_500


def test_a_loop_entered_again_is_not_waited_for_as_long(capture: Run) -> None:
    script = "for _ in range(10):\n    while not (linear(x) > 0).all(): rounds += 1\nprint(rounds)"
    run = capture(PROLOGUE + script).check()
    assert 1_000 <= int(run.said[0]) < 1_200
    assert len([line for line in run.lines("unknown_read") if "decides a loop" in line["what"]]) == 1


LOOPS_OF_NUMBERS = {
    "token": "    token = linear(x)[0].argmax(-1).item()\n    if token == end: break",
    "one of several": "    if int(linear(x)[0].argmax()) in (tokens.end, 1): break",
    "target": "    accuracy = (linear(x) > 0).float().mean().item()\n    if accuracy > 0.9: break",
    "bound": "    if 1e-3 > linear(x).norm().item(): break",
}


@pytest.mark.parametrize("loop", LOOPS_OF_NUMBERS)
def test_a_loop_that_compares_an_unknown_number_runs_to_its_end(capture: Run, loop: str) -> None:
    prologue = "end = 0\nclass tokens: end = 0\nfor rounds in range(50):\n"
    run = capture(PROLOGUE + prologue + LOOPS_OF_NUMBERS[loop] + "\nprint(rounds)").check()
    assert run.said == ["49"]


@pytest.mark.parametrize("end", [0, 50_000])
def test_a_loop_that_waits_for_a_number_gets_it(capture: Run, end: int) -> None:
    loop = "while True:\n    rounds += 1\n    if linear(x)[0].argmax().item() == end: break\nprint(rounds)"
    run = capture(f"{PROLOGUE}end = {end}\n{loop}").check()
    assert 1_000 <= int(run.said[0]) < 1_100
    assert not run.lines("ended_early")


def test_a_loop_that_waits_for_more_than_its_type_can_hold_ends_the_run(capture: Run) -> None:
    script = "while True:\n    if linear(x)[0].argmax().to(torch.uint8).item() == 300: break\nprint('not reached')"
    run = capture(PROLOGUE + script).check()
    assert not run.said
    assert run.one("ended_early")["how"] == "unknown_value"


def test_a_loop_that_no_answer_ends_ends_the_run(capture: Run) -> None:
    script = "while True:\n    if linear(x).sum().item() == float('5'): break\nprint('not reached')"
    run = capture(PROLOGUE + script).check()
    assert not run.said
    line = run.one("ended_early")
    assert line["how"] == "unknown_value"
    assert line["what"].startswith("a loop at ")
    assert "train.py:6 that waits for an unknown value" in line["what"]


def test_a_loop_over_known_values_is_not_ended(capture: Run) -> None:
    script = "i = torch.zeros((), dtype=torch.long, device='cuda')\nwhile i < 1_500: i += 1\nprint(i.item())"
    run = capture(PROLOGUE + script).check()
    assert run.said == ["1500"]
    assert not [line for line in run.lines("unknown_read") if "decides" in line["what"]]


def test_reads_that_decide_nothing_end_no_loop(capture: Run) -> None:
    script = "while rounds < 3_000:\n    rounds += 1\n    loss = x.exp().sum().item()\n    print(loss)"
    run = capture(PROLOGUE + "x = linear(x)\n" + script).check()
    assert set(run.said) == {"1.0"}
    assert not [line for line in run.lines("unknown_read") if "decides" in line["what"]]
