"""Ends loops that wait for an unknown value.

An unknown value gets the answer that goes on, so `while not done.all()` would run for ever. A loop that has asked for
unknown values a thousand times, while no peak has grown, is shown the other answers: it may end then, as it would on a
real GPU sooner or later. If it does not, the run ends there, with what is known by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType, FrameType

from ..capture import Capture
from ..stop.leaving import Leaving
from ..where import in_short, where_of
from .branches import branch_at, loops_around
from .uses import Use

ENOUGH_ROUNDS = 1_000
"""Asked for this often, unknown values get another answer, once in 16 rounds."""
MOST_ROUNDS = 2_000
"""Then the run ends; this is for a `while` that a branch on the value leaves."""
MOST_ROUNDS_OF_OTHERS = 20_000
"""If it is not visible that the value ends the loop."""
ROUNDS_BETWEEN = 16


@dataclass(slots=True)
class _Wait:
    """For the values that one loop asks for."""

    enough: int
    """Rounds, before it is shown another answer."""
    most: int
    resets_with_steps: bool
    step: int
    peaks: list[tuple[int, int]]
    num_reads: int = 0
    num_tries: int = 0
    places: set[tuple[CodeType, int]] = field(default_factory=set)

    def restart(self) -> None:
        self.num_reads = self.num_tries = 0


class Waiting:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._waits: dict[tuple[CodeType, int], _Wait] = {}
        self._leaving = Leaving(capture)
        self.why_another = ""
        """In words, of the last other answer."""

    def is_time_for_another_answer(self, use: Use) -> int:
        """How often the loop around this branch has been shown another answer, with this one; 0: it gets the usual
        one."""
        wait = self._wait(use)
        if wait is None or use.frame is None:
            return 0
        if wait.resets_with_steps and wait.step != self._capture.num_steps:
            wait.restart()
        wait.step = self._capture.num_steps
        wait.places.add((use.frame.f_code, use.offset))
        wait.num_reads += 1
        rounds, place_in_round = divmod(wait.num_reads, len(wait.places))
        over = rounds - wait.enough
        if over < 0 or over % ROUNDS_BETWEEN:
            return 0
        if place_in_round == 0:
            if self._have_peaks_grown(wait):
                return 0
            wait.num_tries += 1
            self._say(use.frame, rounds, wait)
        return wait.num_tries

    def _wait(self, use: Use) -> _Wait | None:
        found = _loop_around(use)
        if found is None:
            return None
        place, enough, most, leaves = found
        if place not in self._waits:
            self._waits[place] = _Wait(enough, most, not leaves, self._capture.num_steps, self._peaks())
        return self._waits[place]

    def _have_peaks_grown(self, wait: _Wait) -> bool:
        """Then the run goes on: a longer one needs more memory."""
        peaks = self._peaks()
        if peaks == wait.peaks:
            return False
        wait.peaks = peaks
        wait.restart()
        return True

    def _peaks(self) -> list[tuple[int, int]]:
        devices = self._capture.end_values().get("devices", [])
        return [(each["peak_allocated_bytes"], each["peak_reserved_bytes"]) for each in devices]

    def _say(self, frame: FrameType, rounds: int, wait: _Wait) -> None:
        self.why_another = f"after {wait.enough:,} rounds in which no peak grew, it got another one"
        if rounds >= wait.most:
            place = in_short(where_of(frame)) or "an unknown line"
            self._leaving.leave(f"a loop at {place} that waits for an unknown value", how="unknown_value")


def _loop_around(use: Use) -> tuple[tuple[CodeType, int], int, int, bool] | None:
    """The loop that may wait for the value, how many rounds of it are enough, and too many, and whether the branch
    leaves it. A `for` usually ends without the branch."""
    frame, offset = use.frame, use.offset
    if frame is None:
        return None
    innermost = loops_around(frame.f_code, offset)
    branch = branch_at(frame.f_code, offset)
    if innermost and branch is not None and branch.leaves_loop:
        factor = 10 if innermost[0].is_for else 1
        return (frame.f_code, innermost[0].start), factor * ENOUGH_ROUNDS, factor * MOST_ROUNDS, True
    while frame is not None:
        for loop in loops_around(frame.f_code, offset):
            if not loop.is_for:
                return (frame.f_code, loop.start), ENOUGH_ROUNDS, MOST_ROUNDS_OF_OTHERS, False
        frame = frame.f_back
        offset = frame.f_lasti if frame is not None else 0
    return None
