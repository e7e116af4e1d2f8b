"""A difference in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.diff.compare import (
    BlockChange,
    Change,
    Difference,
    RowChange,
    described,
    folded,
    outlook,
    percent,
    sentence,
    signed,
)
from foretell.diff.summary import Summary
from foretell.report.dotted import Dotted
from foretell.report.holders import words_of
from foretell.units import format_bytes

_MAX_WIDTH = 110
_NARROW = 76
"""Below this width, some numbers are left out."""
_ROWS = 12
PEAK_WORDS = {
    "allocated_bytes": "peak allocated",
    "fragmentation_bytes": "  fragmentation",
    "slack_bytes": "  cached",
    "reserved_bytes": "peak reserved",
    "library_bytes": "+ libraries",
    "context_bytes": "+ CUDA context",
    "device_bytes": "= device",
    "request_bytes": "request",
}


def render(difference: Difference, console: Console) -> None:
    width = min(console.width, _MAX_WIDTH)
    is_narrow = width < _NARROW
    parts: list[RenderableType | None] = [
        _runs(difference),
        Padding(Text(sentence(difference), style=f"bold {_colour(outlook(difference))}"), (1, 2, 0, 2)),
        _table("", _named(difference.peaks, PEAK_WORDS.__getitem__)),
        _table("by category", _named(difference.categories or (), words_of)),
        _table("by module", _named(folded(difference.modules or ())), has_percent=not is_narrow),
        _blocks(folded(difference.blocks or ()), is_narrow=is_narrow),
        _steps(difference.steps, difference.outside_steps or ()),
        _facts(difference),
        _notes(difference),
    ]
    console.print(Group(*(part for part in parts if part is not None)), width=width)


def _runs(difference: Difference) -> RenderableType:
    table = _grid(3)
    for word, summary in (("before", difference.before), ("after", difference.after)):
        table.add_row(Text(word, style="bright_black"), Text(summary.path, style="bold"), _outcome(summary))
    return Padding(table, (1, 2, 0, 2), expand=False)


def _outcome(summary: Summary) -> Text:
    is_oom = summary.verdict == "oom"
    verdict = ("OUT OF MEMORY", "bold red") if is_oom else ("fits", "green")
    return Text.assemble(verdict, (f" on {summary.gpu}, torch {summary.torch}", "bright_black"))


def _named(changes: Sequence[Change], word: Callable[[str], str] | None = None) -> list[tuple[str, Change]]:
    return [(word(change.name) if word else change.name, change) for change in changes]


def _table(title: str, rows: Sequence[tuple[str, Change]], *, has_percent: bool = True) -> RenderableType | None:
    if not rows:
        return None
    table = _headed(title, "before", "after", "change", *[""] * has_percent)
    for name, change in rows[:_ROWS]:
        count = f" ({change.count})" if change.count > 1 else ""
        table.add_row(Dotted(Text(name + count)), *_sizes(change, has_percent=has_percent))
    return _titled(table, len(rows))


def _blocks(changes: Sequence[BlockChange], *, is_narrow: bool) -> RenderableType | None:
    if not changes:
        return None
    sizes = ("change",) if is_narrow else ("before", "after", "change", "")
    table = _headed("blocks at the peak", "number", *sizes)
    for change in changes[:_ROWS]:
        what, origin, number = described(change)
        name = Dotted(Text.assemble(what, (f"\n  {origin}", "bright_black")))
        table.add_row(name, number, *([_signed(change)] if is_narrow else _sizes(change)))
    return _titled(table, len(changes))


def _steps(steps: Sequence[RowChange], outside: Sequence[RowChange]) -> RenderableType | None:
    """Steps first; those that all changed alike share a row."""
    rows = [(change.row.place, change) for change in steps]
    if len({(change.reserved.bytes, change.allocated.bytes) for change in steps}) == 1 < len(steps):
        rows = [(f"each of {len(steps)}", steps[0])]
    rows += [(change.row.place, change) for change in outside]
    if not rows:
        return None
    table = _headed("by step", "reserved", "allocated")
    for place, change in rows[:_ROWS]:
        table.add_row(Text(place), _signed(change.reserved), _signed(change.allocated))
    return _titled(table, len(rows))


def _facts(difference: Difference) -> RenderableType | None:
    if not difference.facts:
        return None
    table = _grid(3)
    for fact in difference.facts:
        table.add_row(Text(fact.name, style="bright_black"), Text(fact.before), Text(f"-> {fact.after}"))
    return Padding(table, (1, 2, 0, 2), expand=False)


def _notes(difference: Difference) -> RenderableType:
    table = _grid(2)
    for note in difference.notes:
        table.add_row(Text("!", style="yellow"), Text(note))
    return Padding(table, (1, 2, 0, 2), expand=False)


def _grid(num_columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(num_columns):
        table.add_column(overflow="fold")
    return table


def _headed(first: str, *headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False)
    table.add_column(first, overflow="fold", min_width=16)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _titled(table: Table, num_rows: int) -> RenderableType:
    rest: list[RenderableType] = [table]
    if num_rows > _ROWS:
        rest.append(Text(f"and {num_rows - _ROWS} more (all are in --json and --html)", style="bright_black"))
    return Padding(Group(*rest), (1, 2, 0, 2), expand=False)


def _sizes(change: Change, *, has_percent: bool = True) -> list[Text]:
    sizes = [Text(format_bytes(change.before_bytes)), Text(format_bytes(change.after_bytes)), _signed(change)]
    share = Text(percent(change) if change.bytes else "", style="bright_black")
    return [*sizes, share] if has_percent else sizes


def _signed(change: Change) -> Text:
    return Text(signed(change.bytes), style=_colour(change.bytes))


def _colour(sign: int) -> str:
    return "red" if sign > 0 else "green" if sign < 0 else "bright_black"
