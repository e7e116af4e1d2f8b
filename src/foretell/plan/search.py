"""Finds the largest value that fits, by asking for several values at a time.

Memory grows with a batch size, but not smoothly: kernels, workspaces and segments change with the shapes, so a value
may fit although a smaller one does not. The search assumes that memory grows to find the answer with few questions, and
then asks for values above it: if one of them fits, the search goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

_FIRST_MARGIN = 0.08
"""How far beside the predicted answer the first values are that are meant to enclose it; then a quarter of that."""
_FARTHEST = 64
"""A value is at most so many times the largest that fits: predictions from small values are uncertain."""
_ALIGNED = 8
"""Some kernels need less memory for multiples of it, so the next one above the answer is asked for too."""
_AFTER_A_FAILURE = 4
"""So many values above one with which the script fails are asked for: it may take only even ones."""


@dataclass(frozen=True, slots=True)
class Answer:
    fits: bool | None
    """None: not known, because the script failed with this value."""
    need_bytes: int | None = None
    """What it needs, if it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    value: int | None
    """None: nothing fits."""
    above: Literal["memory", "failure", "range"]
    """Why the next larger value is no answer: it does not fit, the script fails with it, or it is outside the range."""
    is_certain: bool
    """False: too many questions; values above it have not all been asked for."""


def largest(
    ask: Callable[[Sequence[int]], Sequence[Answer]],
    values: range,
    *,
    start: int,
    limit_bytes: int,
    width: int = 2,
    most_questions: int = 80,
) -> Largest:
    """The largest of `values` that fits. `ask` gets at most `width` new values at a time; `start` is the first, or the
    nearest in the range."""
    assert len(values) > 0, values
    search = _Search(ask, values, limit_bytes=limit_bytes, width=width)
    search.ask(search.at(start * 2**number) for number in range(width))
    while len(search.known) < most_questions:
        best, above = search.bracket()
        if above - best > 1:
            search.ask(search.between(best, above))
        elif unknown := search.neighbours(above):
            search.ask(unknown)
        else:
            return search.result(is_certain=True)
    return search.result(is_certain=False)


class _Search:
    """Works with the positions of values in their range."""

    def __init__(
        self, ask: Callable[[Sequence[int]], Sequence[Answer]], values: range, *, limit_bytes: int, width: int
    ) -> None:
        self._ask = ask
        self._values = values
        self._limit_bytes = limit_bytes
        self._width = width
        self._margin = _FIRST_MARGIN
        self._last_gap = 0
        self.known: dict[int, Answer] = {}

    def ask(self, positions: Iterable[int]) -> None:
        new = sorted({position for position in positions if position not in self.known})
        while new:
            asked, new = new[: self._width], new[self._width :]
            answers = self._ask([self._values[position] for position in asked])
            self.known.update(zip(asked, answers, strict=True))

    def at(self, value: int) -> int:
        """The position of the value, or of the nearest in the range below it."""
        return min(max(0, (value - self._values.start) // self._values.step), len(self._values) - 1)

    def bracket(self) -> tuple[int, int]:
        """The largest that fits (-1: none), and the smallest above it that does not (or the end of the range)."""
        best = max((position for position, answer in self.known.items() if answer.fits), default=-1)
        above = (position for position, answer in self.known.items() if position > best and not answer.fits)
        return best, min(above, default=len(self._values))

    def between(self, best: int, above: int) -> list[int]:
        """What to ask for next; at least one position strictly between the two."""
        is_open = above not in self.known
        gap, is_slow = above - best, self._last_gap and above - best > self._last_gap / 2
        self._last_gap = 0 if is_open else gap
        if gap <= self._width + 1 and not is_open:
            return list(range(best + 1, above))
        predicted = self._predicted()
        if predicted is not None and best <= predicted <= above and not is_slow:
            farthest = max(best + 1, self.at(_FARTHEST * self._values[best]))
            return [min(max(best + 1, each), above - 1, farthest) for each in self._around(predicted, best)]
        if is_open and best >= 0:
            doubled = (self.at(self._values[best] * 2**number) for number in range(1, self._width + 1))
            return [max(best + 1, each) for each in doubled]
        parts = self._width + 1
        return [best + max(1, gap * number // parts) for number in range(1, parts)]

    def _around(self, predicted: int, best: int) -> list[int]:
        """Positions on both sides of it, closer each time."""
        distances = [round(self._margin * predicted) // 4**number or 1 for number in range((self._width + 1) // 2)]
        self._margin /= 4 ** len(distances)
        if self._width == 1:
            below = predicted - distances[0]
            return [below if below > best else predicted + distances[0]]
        return [predicted + sign * distance for distance in distances for sign in (-1, 1)][: self._width]

    def _predicted(self) -> int | None:
        """The last that fits, if the memory above the two largest known ones grows as between them."""
        points = [(p, a.need_bytes) for p, a in sorted(self.known.items()) if a.fits and a.need_bytes is not None]
        if len(points) < 2:
            return None
        (first, first_bytes), (second, second_bytes) = points[-2:]
        if second_bytes <= first_bytes:
            return None
        return second + (self._limit_bytes - second_bytes) * (second - first) // (second_bytes - first_bytes)

    def neighbours(self, above: int) -> list[int]:
        """Positions above the first that does not fit that must be asked for as well."""
        beyond = range(above + 1, min(above + _ALIGNED * 2, len(self._values)))
        has_failed = above in self.known and self.known[above].fits is None
        next_ones = beyond[: _AFTER_A_FAILURE if has_failed else 1]
        others = beyond[len(next_ones) :]
        aligned = [position for position in others if self._values[position] % _ALIGNED == 0]
        wanted = [*next_ones, *(aligned or others)[:1]]
        return [position for position in wanted if position not in self.known]

    def result(self, *, is_certain: bool) -> Largest:
        best, above = self.bracket()
        blocking = self.known.get(above)
        return Largest(
            value=None if best < 0 else self._values[best],
            above="range" if blocking is None else "memory" if blocking.fits is False else "failure",
            is_certain=is_certain,
        )
