"""A check in a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.plan.check import Check, headline

_COLOURS = {"within": "green", "over": "red", "oom": "red", "incomplete": "yellow"}


def render(check: Check, console: Console) -> None:
    parts: list[RenderableType] = [Text(headline(check), style=f"bold {_COLOURS[check.verdict]}")]
    table = Table.grid(padding=(0, 2))
    for rule in check.rules:
        word = ("ok", "green") if rule.is_kept else ("over", "bold red")
        table.add_row(Text(*word), Text(str(rule)))
    for caveat in check.caveats:
        table.add_row(Text("!", style="yellow"), Text(caveat))
    parts.append(table)
    console.print(Padding(Group(*parts), (1, 2, 1, 2)))
