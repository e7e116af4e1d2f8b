"""Dotted names in a terminal column: without what they share, shortened in the middle, or wrapped after a dot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text


def shared_prefix(names: Sequence[str]) -> str:
    """The beginning, up to a dot, that all of several names share."""
    if len(set(names)) < 2:
        return ""
    paths = [name.split(".") for name in names]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared])


def shortened(name: str, width: int) -> str:
    """The name in one line of this width: parts in the middle give way to an ellipsis, then letters."""
    if len(name) <= width:
        return name
    first, *rest = name.split(".")
    for number in range(1, len(rest)):
        shorter = ".".join([first, "…", *rest[number:]])
        if len(shorter) <= width:
            return shorter
    head = max(0, width - 1) // 4  # the end tells more
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


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
