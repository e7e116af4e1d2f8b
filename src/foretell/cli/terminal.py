"""Everything foretell prints goes through this module: what others chose (names in a trace, paths, messages of a
script) reaches the terminal without control characters, and a terminal that is closed, full or ASCII is no error."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

from foretell.errors import TraceError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# Control characters except line feed and tab, and the invisible ones that reorder or hide text.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_IN_ASCII = str.maketrans("█░■▁▂▃▄▅▆▇", "#.*__--==#")


def printable(text: str) -> str:
    """Without what would move the cursor, change colours or set the title: `\\x1b[2J` is shown as `[2J`."""
    return _SURROGATES.sub("?", _CONTROL.sub("", text))


def say(message: str) -> None:
    """A line of foretell's own, on standard error."""
    try:
        print(f"{fresh_line(sys.stderr)}foretell: {printable(message)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _give_up(sys.stderr)


def fresh_line(stream: IO[str]) -> str:
    """What to print first, so that the next text does not follow half a line of the script, such as a progress bar.

    The script writes to the same place without our knowing. On a terminal, as many blanks as it has columns fill an
    empty line, and go on to the next one otherwise; in a file, the last character tells.
    """
    try:
        descriptor = stream.fileno()
        if stream.isatty():
            return " " * os.get_terminal_size(descriptor).columns + "\r"
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                file.seek(-1, os.SEEK_END)
                return "" if file.read() == b"\n" else "\n"
    except (OSError, ValueError):
        pass
    return ""


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which here means that the script failed

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            # The characters that are dropped have no width, so the layout stays.
            for segment in super().render(renderable, options):
                text = segment.text
                if segment.control or (text.isascii() and text.isprintable()):
                    yield segment
                    continue
                text = printable(text)
                yield Segment(text if self.encoding.startswith("utf") else text.translate(_IN_ASCII), segment.style)

    return Terminal(stderr=stderr, highlight=False, markup=False, emoji=False)


def prepare_streams() -> None:
    """Make closed standard streams (`>&-`) write nowhere, and those of an ASCII terminal take any text."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:  # or else the next file that is opened gets the number of standard output
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace" if name == "stdout" else "backslashreplace")


def is_stdout_closed() -> bool:
    """Whether `prepare_streams` found it closed."""
    return getattr(sys.stdout, "name", None) == os.devnull


@contextlib.contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """For printing to standard output: a reader that leaves (`| head`) is no error, a full disk is."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
    except OSError as error:
        _give_up(sys.stdout)
        raise TraceError(f"cannot write to standard output: {error.strerror or error}.") from None


def _give_up(stream: IO[str]) -> None:
    """Python would complain again, and change the exit code, when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
