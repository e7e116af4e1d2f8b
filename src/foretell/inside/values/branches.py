"""Finds the answer that keeps the script going, from the code about to branch on it.

`assert norm > 0`, `if not valid.all(): raise ...` and `if loss > 100: sys.exit(1)` check what holds in a run that
works. If the value is unknown, the run to estimate is the one that does not raise. Of two branches of which one leaves
a loop (`if done.all(): break`), it is the one that stays: the longest run needs the most memory, and loops.py sees to
it that it ends.
"""

from __future__ import annotations

import dis
import functools
from dataclasses import dataclass
from types import CodeType, FrameType

_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_STOPS = _RETURNS | {"RERAISE"}
_EXITS = ("exit", "quit", "_exit")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD")
_MOST_FOLLOWED = 200
"""Instructions looked at to see where a branch leads."""


@dataclass(frozen=True, slots=True)
class Loop:
    start: int
    """Offset of its first instruction; the last one jumps back to it."""
    end: int
    is_for: bool

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset <= self.end


@dataclass(frozen=True, slots=True)
class Branch:
    answer: bool | None
    """The truth value that goes on; None if both do, or neither."""
    leaves_loop: bool
    """Whether the other one leaves the innermost loop."""


def answer_that_goes_on(frame: FrameType) -> bool | None:
    """For a frame that evaluates `bool(tensor)` in a condition; None if both branches continue, or neither."""
    branch = branch_at(frame.f_code, frame.f_lasti)
    return branch.answer if branch is not None else None


@functools.lru_cache(maxsize=256)  # a training loop returns to the same places
def branch_at(code: CodeType, offset: int) -> Branch | None:
    """What depends on the truth value that the instruction there asks for; None if it does not branch."""
    following = _instructions_from(code, offset)
    if following and following[0].opname == "TO_BOOL":
        following = following[1:]
    if not following or "JUMP" not in (jump := following[0]).opname or not isinstance(jump.argval, int):
        return None
    is_taken_if_true, is_taken_if_false = "IF_TRUE" in jump.opname, "IF_FALSE" in jump.opname
    if (not is_taken_if_true and not is_taken_if_false) or len(following) == 1:
        return None
    does_falling_raise = _raises(following[1:])
    if does_falling_raise != _raises(_instructions_from(code, jump.argval)):
        return Branch(is_taken_if_true == does_falling_raise, leaves_loop=False)
    depth_falling, depth_jumping = (_depth(code, each) for each in (following[1].offset, jump.argval))
    if depth_falling == depth_jumping:
        return Branch(None, leaves_loop=False)
    return Branch(is_taken_if_true == (depth_jumping > depth_falling), leaves_loop=bool(loops_around(code, offset)))


@functools.lru_cache(maxsize=1024)
def loops_around(code: CodeType, offset: int) -> tuple[Loop, ...]:
    """Loops whose body this is part of, innermost first."""
    return tuple(sorted((loop for loop in _loops(code) if offset in loop), key=lambda loop: loop.end - loop.start))


@functools.lru_cache(maxsize=256)
def _loops(code: CodeType) -> tuple[Loop, ...]:
    names = {each.offset: each.opname for each in instructions(code)}
    ends: dict[int, int] = {}
    for each in instructions(code):
        is_back = "JUMP" in each.opname and isinstance(each.argval, int) and each.argval < each.offset
        if is_back and "NO_INTERRUPT" not in each.opname:  # that one waits for a coroutine
            ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
    loops: list[Loop] = []
    for start, end in sorted(ends.items()):
        if loops and start <= loops[-1].end < end:  # a `continue` jumps to the condition before the first round
            loops[-1] = Loop(loops[-1].start, end, loops[-1].is_for)
        else:
            loops.append(Loop(start, end, names.get(start) == "FOR_ITER"))
    return tuple(loops)


@functools.lru_cache(maxsize=256)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(dis.get_instructions(code))


def _instructions_from(code: CodeType, offset: int) -> list[dis.Instruction]:
    return [each for each in instructions(code) if each.offset >= offset]


def _raises(following: list[dis.Instruction]) -> bool:
    """Whether the code reaches a `raise` or `sys.exit` before it branches or ends."""
    for each in following:
        if each.opname == "RAISE_VARARGS" or (each.opname in _LOADS and each.argval in _EXITS):
            return True
        if each.opname in _STOPS or "JUMP" in each.opname or each.opname == "FOR_ITER":
            return False
    return False


def _depth(code: CodeType, offset: int) -> int:
    """How many loops the code is in that is reached from there before it branches; a `return` leaves them all."""
    found = instructions(code)
    numbers = {each.offset: number for number, each in enumerate(found)}
    number = numbers[offset]
    for _ in range(_MOST_FOLLOWED):
        each = found[number]
        if each.opname in _STOPS or number + 1 == len(found):
            return 0
        is_jump = "JUMP" in each.opname and isinstance(each.argval, int)
        if each.opname == "FOR_ITER" or (is_jump and ("IF_" in each.opname or each.argval < each.offset)):
            break
        number = numbers[each.argval] if is_jump else number + 1
    return len(loops_around(code, found[number].offset))
