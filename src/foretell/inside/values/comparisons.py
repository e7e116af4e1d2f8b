"""Finds a number with which the script goes on, or ends a loop, where it compares an unknown value with a known one:
`if token == eos: break`, `if accuracy > 0.9: return`."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..variables import variables_of
from .branches import branch_at
from .uses import Comparison, Use

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "in": lambda number, container: number in container, "not in": lambda number, container: number not in container,
}  # fmt: skip
_FEW = 64
_LARGE = 1 << 20
_MOST_ELEMENTS = 1_000
_NUMBERS = (int, float, bool)


def number_that_goes_on(use: Use, usual: float) -> float:
    """The usual number, or another one if that would leave a loop, or raise."""
    found = _number(use, usual, is_going_on=True)
    return usual if found is None else found


def number_that_ends(use: Use) -> float | None:
    """A number that leaves the loop; None if the code does not tell."""
    return _number(use, 0, is_going_on=False)


def _number(use: Use, usual: float, *, is_going_on: bool) -> float | None:
    if use.frame is None or use.comparison is None or use.comparison.operator not in _OPERATORS:
        return None
    branch = branch_at(use.frame.f_code, use.offset)
    other = _look_up(use.frame, use.comparison) if branch is not None and branch.answer is not None else None
    if branch is None or other is None:
        return None
    compare = _OPERATORS[use.comparison.operator]
    own = (other,) if type(other) in _NUMBERS else tuple(other)
    for number in (usual, *range(_FEW), _LARGE, -1, -_LARGE, *own):
        sides = (other, number) if use.comparison.is_reversed else (number, other)
        try:
            answer = bool(compare(*sides))
        except TypeError:
            return None
        if (answer == branch.answer) == is_going_on:
            return float(number)
    return None


def _look_up(frame: FrameType, comparison: Comparison) -> Any:
    """The other side, if it is a number or a few of them; None if it is not, or cannot be found without a call."""
    if sys.gettrace() is not None:  # a debugger writes the variables back
        return None
    try:
        with variables_of(frame) as variables:
            found = eval(comparison.other, frame.f_globals, variables)  # names, attributes, constants and indices alone
    except Exception:  # the other side may not exist yet
        return None
    if type(found) in _NUMBERS:
        return found
    if type(found) in (tuple, list, set, frozenset, dict) and len(found) <= _MOST_ELEMENTS:
        return found if all(type(each) in _NUMBERS for each in found) else None
    return None
