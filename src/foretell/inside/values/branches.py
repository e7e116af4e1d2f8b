"""Finds the truth value that keeps the script going, from the code about to branch on it.

`assert norm > 0` and `if not valid.all(): raise ...` check what holds in a run that works. If the value is unknown, the
run to estimate is the one that does not raise.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType

_STOPS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RERAISE"})


def answer_that_does_not_raise(frame: FrameType) -> bool | None:
    """For a frame that evaluates `bool(tensor)` in a condition; None if both branches continue, or neither."""
    return _answer_at(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=256)  # a training loop returns to the same places
def _answer_at(code: CodeType, offset: int) -> bool | None:
    following = _instructions_from(code, offset)
    if following and following[0].opname == "TO_BOOL":
        following = following[1:]
    if not following or "JUMP" not in (jump := following[0]).opname or not isinstance(jump.argval, int):
        return None
    is_taken_if_true, is_taken_if_false = "IF_TRUE" in jump.opname, "IF_FALSE" in jump.opname
    if not is_taken_if_true and not is_taken_if_false:
        return None
    does_falling_raise = _raises(following[1:])
    if does_falling_raise == _raises(_instructions_from(code, jump.argval)):
        return None
    return is_taken_if_true == does_falling_raise


def _instructions_from(code: CodeType, offset: int) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(code) if each.offset >= offset]


def _raises(instructions: list[dis.Instruction]) -> bool:
    """Whether the code reaches a `raise` before it branches or ends."""
    for each in instructions:
        if each.opname == "RAISE_VARARGS":
            return True
        if each.opname in _STOPS or "JUMP" in each.opname or each.opname == "FOR_ITER":
            return False
    return False
