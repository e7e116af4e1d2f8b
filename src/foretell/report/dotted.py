"""Dotted names in a terminal column: a long name wraps after a dot or a space, never within a word."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text


class Dotted:
    """A text that wraps at dots: rich only breaks lines at spaces, and a module path has none."""

    def __init__(self, text: Text) -> None:
        self._lines = text.split("\n", allow_blank=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(line.cell_len for line in self._lines)
        return Measurement(1, longest).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            yield from _broken(line, options.max_width)


def _broken(line: Text, width: int) -> Iterator[Text]:
    """Continuation lines keep the indent of the first."""
    indent = len(line.plain) - len(line.plain.lstrip())
    while line.cell_len > width:
        at = _end(line.plain, indent, width)
        yield line[:at]
        line = Text(" " * indent) + line[at:]
    yield line


def _end(line: str, indent: int, width: int) -> int:
    """Break at a space if the next word fits on a line; else after a dot; else cut the name."""
    space = line.rfind(" ", indent, width + 1)
    if space > indent and indent + len(line[space + 1 :].split(" ")[0]) <= width:
        return space + 1
    return max(line.rfind(".", indent, width), line.rfind(" ", indent, width)) + 1 or width
