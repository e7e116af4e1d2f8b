"""The answer that keeps a script going is read off the branch that asks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import foretell


def load_branches() -> ModuleType:
    path = Path(foretell.__file__).parent / "inside" / "values" / "branches.py"
    spec = importlib.util.spec_from_file_location("branches_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


branches = load_branches()


class Unknown:
    """Remembers which answer the branch that asks would like."""

    def __init__(self) -> None:
        self.answers: list[bool | None] = []

    def __bool__(self) -> bool:
        self.answers.append(branches.answer_that_does_not_raise(sys._getframe(1)))
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

def either_way(value):
    if value:
        return 1
    return 2

def both_raise(value):
    if value:
        raise KeyError
    raise ValueError
"""
functions: dict[str, Any] = {}
exec(compile(ASSERTIONS + GUARDS, "a script", "exec"), functions)


@pytest.mark.parametrize(
    ("function", "answers"),
    [
        ("plain_assertion", [True]),
        ("negated_assertion", [False]),
        ("assertion_of_two", [True, True]),
        ("guard_that_raises", [False]),
        ("guard_that_raises_unless", [True]),
        ("guard_with_an_else", [True]),
        ("either_way", [None]),
    ],
)
def test_the_answer_is_the_one_that_does_not_raise(function: str, answers: list[bool | None]) -> None:
    unknown = Unknown()
    functions[function](unknown)
    assert unknown.answers == answers


def test_no_answer_is_preferred_where_both_ways_raise_or_nothing_branches() -> None:
    unknown = Unknown()
    with pytest.raises(ValueError):
        functions["both_raise"](unknown)
    bool(unknown)
    assert unknown.answers == [None, None]
