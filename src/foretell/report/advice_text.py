"""Advice in a terminal, below the estimate."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.records import Advice
from foretell.report.performance import duration
from foretell.units import format_bytes

_MAX_WIDTH = 100
_SAME_TIME = 0.01
"""A step that changes by less takes as long as before."""


def price(advice: Advice) -> str:
    """What the change costs, with its cost of time on this card if that is known."""
    before, after = advice.step_ms_before, advice.step_ms
    if not before or not after:
        return advice.price
    change = after / before - 1
    if abs(change) < _SAME_TIME:
        return f"{advice.price}; here a step takes {duration(before)}, as before"
    return f"{advice.price}; here a step takes {duration(after)} instead of {duration(before)} ({change:+.0%})"


def render(
    advice: Sequence[Advice],
    *,
    reserved_bytes: int,
    is_oom: bool,
    not_tried: Sequence[str],
    console: Console,
) -> None:
    parts: list[RenderableType] = []
    if advice:
        parts += [_headline(advice, reserved_bytes, is_oom=is_oom), _table(advice, is_oom=is_oom)]
    else:
        parts.append(Text(f"No change that was tried lowers the reserved peak of {format_bytes(reserved_bytes)}."))
    parts += [Text(f"not tried: {what}", style="bright_black") for what in not_tried]
    console.print(Padding(Group(*parts), (0, 2, 1, 2), expand=False), width=min(console.width, _MAX_WIDTH))


def _headline(advice: Sequence[Advice], reserved_bytes: int, *, is_oom: bool) -> Text:
    text = Text.assemble(("Changes that lower the reserved peak", "bold"), f" of {format_bytes(reserved_bytes)}")
    if not is_oom:
        return text.append(":")
    num_fitting = sum(each.verdict == "fits" for each in advice)
    text.append(" (measured on a larger card). ")
    if not num_fitting:
        return text.append("None of them makes the job fit:", style="red")
    return text.append(f"{num_fitting} of {len(advice)} make{'s' * (num_fitting == 1)} the job fit:", style="green")


def _table(advice: Sequence[Advice], *, is_oom: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False)
    table.add_column("saves", justify="right", no_wrap=True)
    table.add_column("leaves", justify="right", no_wrap=True)
    table.add_column("change, how to make it, and its cost", overflow="fold")
    for each in advice:
        saves = ("~" if each.basis == "estimated" else "") + format_bytes(each.saved_bytes)
        words = Text(each.title, style="bold")
        if each.basis == "estimated":
            words.append("  estimated", style="not bold yellow")
        if is_oom:
            words.append(*(("  fits", "green") if each.verdict == "fits" else ("  does not fit", "red")))
        words.append(f"\n{each.how}", style="not bold").append(f"\ncost: {price(each)}", style="not bold bright_black")
        table.add_row(saves, format_bytes(each.peak_reserved_bytes), words)
    return table
