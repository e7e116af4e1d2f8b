"""The peaks of steps, and of what ran outside them, for every report."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from foretell.records import Estimate, OutsidePeak, StepPeak, first_at, in_order
from foretell.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Consecutive steps that look the same, or one thing outside the steps."""

    place: str
    sizes: tuple[str, str]
    """Allocated and reserved."""
    is_peak: bool
    """Reserved memory first reached its peak here."""
    is_step: bool
    reserved_bytes: int


def step_lines(estimate: Estimate) -> list[StepLine]:
    """In the order they ran: all steps, finished or not, all evaluations, and wherever else the peak was."""
    peak_place = estimate.peak_place
    shown = [
        row
        for row in in_order(estimate.steps, estimate.outside_steps)
        if isinstance(row, StepPeak) or row.kind in ("evaluation", "unfinished") or row.place == peak_place
    ]
    lines = []
    for (outside, sizes), group in groupby(shown, key=_looks):
        rows = list(group)
        first, last = rows[0].place.removeprefix("step "), rows[-1].place.removeprefix("step ")
        lines.append(
            StepLine(
                place=outside or (first if first == last else f"{first} to {last}"),
                sizes=sizes,
                is_peak=any(row.place == peak_place for row in rows),
                is_step=outside is None,
                reserved_bytes=max(row.peak_reserved_bytes for row in rows),
            )
        )
    return lines


def _looks(row: StepPeak | OutsidePeak) -> tuple[str | None, tuple[str, str]]:
    """The place of something outside the steps, and the sizes."""
    sizes = format_bytes(row.peak_allocated_bytes), format_bytes(row.peak_reserved_bytes)
    return None if isinstance(row, StepPeak) else row.place, sizes


def peak_words(estimate: Estimate) -> str:
    """Where the peak was reached, to follow the number of steps; empty without steps."""
    if not estimate.steps:
        return ""
    peak, place = estimate.peak.reserved_bytes, estimate.peak_place
    if place is None:
        return "; peak reached outside the steps"
    words = f"; peak first reached {'' if place.startswith(('before', 'after')) else 'in '}{place}"
    near = first_at(peak - peak // 1000, estimate.steps, estimate.outside_steps)
    return words if near is None or near.place == place else f"{words}, within 0.1 % from {near.place} on"
