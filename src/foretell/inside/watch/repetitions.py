"""Finds passes of an evaluation that repeat those before them in the memory history, so that they can be left out.

A pass lasts from the begin of one evaluation of a model to the begin of the next. It is left out if it allocates and
frees the same bytes at the same addresses as each of the two passes before it, and leaves as many bytes allocated and
reserved as it found. The memory after it is then the memory before it: whatever a pass does to an address, doing it
again leaves the address as it was. A loop that holds its last batch while it loads the next one alternates between two
addresses, so a pair of passes can also repeat the two pairs before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_Entries = list[dict[str, Any]]
_Moves = list[tuple[Any, ...]]
_PERIODS = (1, 2)


@dataclass(frozen=True, slots=True)
class Counters:
    """PyTorch's counters, over all devices."""

    num_allocations: int
    allocated_bytes: int
    reserved_bytes: int

    @property
    def bytes(self) -> tuple[int, int]:
        return self.allocated_bytes, self.reserved_bytes


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries from one begin to the next."""

    is_pass: bool
    entries: _Entries
    begin: Counters
    end: Counters
    moves: _Moves

    @property
    def num_allocations(self) -> int:
        return self.end.num_allocations - self.begin.num_allocations


class Repetitions:
    def __init__(self) -> None:
        self._begins: list[tuple[Counters, bool]] = []
        """What has begun since the last call of `remove`; True: a pass of an evaluation."""
        self._before: deque[_Moves] = deque(maxlen=2 * max(_PERIODS))
        """The last passes that were kept."""

    @property
    def is_in_pass(self) -> bool:
        return bool(self._begins) and self._begins[-1][1]

    def begins(self, now: Counters, *, is_pass: bool) -> None:
        self._begins.append((now, is_pass))

    def remove(self, entries: _Entries, first: int, now: Counters) -> tuple[_Entries, list[tuple[int, int]]]:
        """The entries without repetitions, and for each repetition: how many of the allocations kept it followed, and
        how many it repeats. `first` is the number of allocations before the first entry."""
        begins, self._begins = self._begins, []
        allocations = [number for number, entry in enumerate(entries) if entry["action"] == "alloc"]
        # Other numbers mean that the script has reset the counters, or that a thread has allocated during a flush.
        is_counted = first + len(allocations) == now.num_allocations
        if not is_counted or not begins or not first <= begins[0][0].num_allocations <= now.num_allocations:
            self._before.clear()
            return entries, []
        if begins[-1][0] == now:  # which therefore begins with the next entry
            self._begins.append(begins[-1])
        ends = [*allocations, len(entries)]
        cuts = [ends[at.num_allocations - first] for at, _ in begins]
        kept, repeated = entries[: cuts[0]], []
        num_kept = begins[0][0].num_allocations - first
        parts = [
            _Part(is_pass, entries[cut:until], begin, end, _moves(entries[cut:until]) if is_pass else [])
            for ((begin, is_pass), (end, _)), (cut, until) in zip(pairwise(begins), pairwise(cuts), strict=True)
        ]
        at = 0
        while at < len(parts):
            period = self._period(parts[at : at + max(_PERIODS)])
            if period:
                repeated.append((num_kept, sum(part.num_allocations for part in parts[at : at + period])))
            else:
                self._keep(parts[at])
                kept += parts[at].entries
                num_kept += parts[at].num_allocations
            at += period or 1
        kept += entries[cuts[-1] :]
        if begins[-1][0] != now:
            self._before.clear()
        return kept, repeated

    def _period(self, parts: list[_Part]) -> int:
        """How many of the parts, from the first on, repeat those kept before them."""
        before = list(self._before)
        for period in _PERIODS:
            moves = [part.moves for part in parts[:period] if part.is_pass]
            repeats = len(moves) == period and before[-2 * period :] == 2 * moves
            if repeats and parts[0].begin.bytes == parts[period - 1].end.bytes:
                return period
        return 0

    def _keep(self, part: _Part) -> None:
        if part.is_pass:
            self._before.append(part.moves)
        else:
            self._before.clear()


def _moves(entries: _Entries) -> _Moves:
    return [(entry["action"], entry.get("addr"), entry["size"], entry["stream"]) for entry in entries]
