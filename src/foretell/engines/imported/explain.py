"""How each pass changes the peaks, as a table: where an estimate comes from, and where it goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretell.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    name: str
    what: str
    num_events: int
    """Blocks that were added, dropped or changed."""
    peak_allocated_bytes: int
    """After this pass and all before it, with unlimited memory."""
    peak_reserved_bytes: int


def render(results: Sequence[PassResult], console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pass", no_wrap=True)
    for title in ("changed", "allocated", "reserved"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("what it does", style="bright_black", overflow="fold")
    for result in results:
        allocated, reserved = format_bytes(result.peak_allocated_bytes), format_bytes(result.peak_reserved_bytes)
        table.add_row(result.name, f"{result.num_events:,}", allocated, reserved, result.what)
    console.print(Padding(table, (1, 2, 0, 2), expand=False))
