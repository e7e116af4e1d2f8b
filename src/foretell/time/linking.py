"""Finds the operator that each record of the virtual GPU belongs to: the innermost one that ran at its time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from foretell.trace import Operators


class Callers:
    """Answers which operator ran at a time. Threads take turns: the one that began last is meant."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        rows: dict[int, list[int]] = {}
        for row, thread in enumerate(operators.thread):
            rows.setdefault(thread, []).append(row)
        # In preorder, so of operators that begin in the same microsecond the inner ones come later.
        self._rows = [sorted(own, key=lambda row: operators.begin_us[row]) for own in rows.values()]
        self._begins = [[operators.begin_us[row] for row in own] for own in self._rows]

    def at(self, time_us: int) -> int:
        """Its row, or -1."""
        found = max((self._of_thread(number, time_us) for number in range(len(self._rows))), default=(-1, -1))
        return found[1]

    def _of_thread(self, number: int, time_us: int) -> tuple[int, int]:
        at = bisect_right(self._begins[number], time_us) - 1
        if at < 0:
            return -1, -1
        row = self._rows[number][at]
        operators = self._operators
        while row >= 0 and operators.end_us[row] < time_us:
            row = operators.parent[row]
        return (operators.begin_us[row], row) if row >= 0 else (-1, -1)


def ancestors(operators: Operators, row: int) -> Iterator[int]:
    """The operator itself and its callers, innermost first."""
    while row >= 0:
        yield row
        row = operators.parent[row]


def is_within(time_us: int, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether one of the spans holds this time."""
    return any(begin <= time_us <= end for begin, end in spans)


def within(times: Iterable[int], begin_us: int, end_us: int) -> list[int]:
    """The rows of a table between two times."""
    return [row for row, time_us in enumerate(times) if begin_us <= time_us <= end_us]
