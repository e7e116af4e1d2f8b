"""The phases of a run, in the events of one device.

Phases are marked during the run; a forward pass begins with a call of a module. One that calls no module (functions of
tensors; GPyTorch's models, which have their own `__call__`) is found from what it leaves: it begins with the first
block that the backward pass frees, or earlier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from foretell.analysis.history import NONE, History, Lives
from foretell.records import Span
from foretell.trace import Trace
from foretell.trace.records import PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan(Span):
    where: int = NONE
    """The line that began it, as an index into Trace.owners."""


def phase_spans(trace: Trace, history: History) -> tuple[PhaseSpan, ...]:
    return tuple(_with_forwards(list(_marked(trace, history)), history.lives))


def _marked(trace: Trace, history: History) -> Iterator[PhaseSpan]:
    spans, rows = trace.spans, history.rows
    is_only_device = len(rows) == len(trace.memory.action)
    begins: Iterable[int] = spans.event if is_only_device else (bisect_left(rows, event) for event in spans.event)
    for begin, phase, step, where in zip(begins, spans.phase, spans.step, spans.where, strict=True):
        yield PhaseSpan(begin=begin, step=step, phase=PHASES[phase], where=where)


def _with_forwards(spans: Sequence[PhaseSpan], lives: Lives) -> Iterator[PhaseSpan]:
    for number, span in enumerate(spans):
        before = spans[number - 1] if number else None
        if span.phase == "backward" and (before is None or before.phase == "other"):
            until = spans[number + 1].begin if number + 1 < len(spans) else None
            begin = _first_freed(lives, before.begin if before else 0, span.begin, until)
            if begin is not None:
                yield PhaseSpan(begin=begin, step=span.step, phase="forward")
        yield span


def _first_freed(lives: Lives, since: int, backward: int, until: int | None) -> int | None:
    """The event of the first allocation from `since` on that the backward pass frees."""
    for number in range(bisect_left(lives.begin, since), bisect_left(lives.begin, backward)):
        end = lives.end[number]
        if end >= backward and (until is None or end < until):
            return lives.begin[number]
    return None
