"""The answer that keeps a script going is read off the branch that asks."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from foretell.inside.values import branches


class Unknown:
    """Remembers which answer the branch that asks would like."""

    def __init__(self) -> None:
        self.answers: list[bool | None] = []

    def __bool__(self) -> bool:
        self.answers.append(branches.answer_that_goes_on(sys._getframe(1)))
        return bool(self.answers[-1])


# As text, because pytest writes the assertions of a test file anew.
ASSERTIONS = """
def plain_assertion(value):
    assert value, "must hold"

def negated_assertion(value):
    assert not value

def assertion_of_two(value):
    assert value and value
"""
GUARDS = """
def guard_that_raises(value):
    if value:
        raise ValueError(f"bad {value}")

def guard_that_raises_unless(value):
    if not value:
        text = "bad"
        raise ValueError(text)

def guard_with_an_else(value):
    if value:
        return 1
    else:
        raise ValueError("bad")

def guard_that_exits(value):
    if not value:
        print("exit")
        sys.exit(1)

def either_way(value):
    if value:
        return 1
    return 2

def both_raise(value):
    if value:
        raise KeyError
    raise ValueError
"""
LOOPS = """
def loop_with_a_condition(value):
    while value:
        if len(value.answers) > 1:
            break

def loop_until(value):
    while not value:
        if len(value.answers) > 1:
            break

def loop_with_a_break(value):
    rounds = 0
    while True:
        if value:
            print("done")
            break
        rounds += 1
        if rounds > 1:
            return rounds

def loop_that_returns(value):
    for _ in range(2):
        if not value:
            return 1

def while_loop_that_continues(value):
    rounds = 0
    while rounds < 2:
        rounds += 1
        if rounds and value:
            continue
        len("more")

def loop_that_continues(value):
    for _ in range(2):
        if value:
            continue
        len("more")
"""
functions: dict[str, Any] = {"sys": sys}
exec(compile(ASSERTIONS + GUARDS + LOOPS, "a script", "exec"), functions)


@pytest.mark.parametrize(
    ("function", "answers"),
    [
        ("plain_assertion", [True]),
        ("negated_assertion", [False]),
        ("assertion_of_two", [True, True]),
        ("guard_that_raises", [False]),
        ("guard_that_raises_unless", [True]),
        ("guard_with_an_else", [True]),
        ("guard_that_exits", [True]),
        ("either_way", [None]),
    ],
)
def test_the_answer_is_the_one_that_does_not_raise(function: str, answers: list[bool | None]) -> None:
    unknown = Unknown()
    functions[function](unknown)
    assert unknown.answers == answers


@pytest.mark.parametrize(
    ("function", "answers"),
    [
        ("loop_with_a_condition", [True, True]),
        ("loop_until", [False, False]),
        ("loop_with_a_break", [False, False]),
        ("loop_that_returns", [True, True]),
        ("loop_that_continues", [None, None]),
        ("while_loop_that_continues", [None, None]),
    ],
)
def test_the_answer_is_the_one_that_stays_in_the_loop(function: str, answers: list[bool | None]) -> None:
    unknown = Unknown()
    functions[function](unknown)
    assert unknown.answers == answers


def test_no_answer_is_preferred_where_both_ways_raise_or_nothing_branches() -> None:
    unknown = Unknown()
    with pytest.raises(ValueError):
        functions["both_raise"](unknown)
    bool(unknown)
    assert unknown.answers == [None, None]
