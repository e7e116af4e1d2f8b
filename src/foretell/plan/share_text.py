"""A `Share` in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foretell.plan.share import Pair, Share
from foretell.rules.capacity import Grade
from foretell.rules.sharing import Speed
from foretell.units import format_bytes

_WORDS: dict[Grade, tuple[str, str]] = {
    "fits": ("fit", "green"), "tight": ("tight", "yellow"), "oom": ("do not fit", "red"),
}  # fmt: skip
_MOST_PAIRS = 20
_LEGEND = (
    "needs: as in nvidia-smi; request: enough for 99 % of runs, and compared with the GPU; tight: the needs fit, but "
    "the requests do not."
)
_SPEEDS = " speed: relative to the job alone on the GPU, with the range of 90 % of measured pairs."


def render(share: Share, console: Console) -> None:
    console.print(Text(headline(share), style="bold"))
    has_speeds = any(job.speed for job in share.jobs) or any(pair.speeds for pair in share.pairs)
    console.print(_jobs(share, has_speeds=has_speeds))
    if share.pairs:
        console.print(Text("Pairs, the best first", style="bold"))
        console.print(_pairs(share, has_speeds=has_speeds))
        if len(share.pairs) > _MOST_PAIRS:
            console.print(Text(f"and {len(share.pairs) - _MOST_PAIRS} more (--json has all)"))
    console.print(Text(_LEGEND + (_SPEEDS if has_speeds else ""), style="bright_black"))
    for note in share.notes:
        console.print(Text(f"note: {note}"))


def headline(share: Share) -> str:
    many = "Both jobs" if len(share.jobs) == 2 else f"All {len(share.jobs)} jobs"
    none = "The two jobs" if len(share.jobs) == 2 else f"The {len(share.jobs)} jobs"
    card, memory = f"{share.gpu.device_name} ({share.gpu.name})", share.memory
    if share.mode == "mig":
        if share.grade == "oom":
            return f"{none} do not fit on MIG slices of {card} at the same time."
        return f"{many} fit on MIG slices of {card}" + ("." if share.grade == "fits" else ", but only just.")
    how = " with MPS" if share.mode == "mps" else ""
    of = f"{format_bytes(memory.available_bytes)} of {card}"
    if share.grade == "fits":
        return f"{many} fit together{how} in the {of}, with {format_bytes(memory.spare_bytes)} to spare."
    if share.grade == "tight":
        return (
            f"{many} fit together{how} in the {of}, but only just: they need {format_bytes(memory.device_bytes)}, and "
            f"{format_bytes(memory.request_bytes)} should be requested."
        )
    return f"{none} do not fit together{how} in the {of}: they need {format_bytes(memory.device_bytes)}."


def _jobs(share: Share, *, has_speeds: bool) -> Table:
    table = _table("", "job", "needs", "request", *(["slice"] if share.mode == "mig" else []), *_speed(has_speeds))
    for number, job in enumerate(share.jobs):
        row = [_letter(number), job.name, format_bytes(job.device_bytes), format_bytes(job.request_bytes)]
        if share.mode == "mig":
            row.append("-" if job.slice is None else job.slice.name.partition(":")[2])
        table.add_row(*row, *([_speed_text(job.speed)] if has_speeds else []))
    if share.mode != "mig":
        memory = share.memory
        table.add_row("", "together", format_bytes(memory.device_bytes), format_bytes(memory.request_bytes))
    return table


def _pairs(share: Share, *, has_speeds: bool) -> Table:
    table = _table("pair", "", "spare", *(["speeds"] if has_speeds else []))
    for pair in share.pairs[:_MOST_PAIRS]:
        word, style = _WORDS[pair.grade]
        spare = "-" if pair.spare_bytes is None else format_bytes(pair.spare_bytes)
        names = f"{_letter(pair.first)} + {_letter(pair.second)}"
        table.add_row(names, Text(word, style=style), spare, *([_speeds_text(pair)] if has_speeds else []))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1))
    for heading in headings:
        is_size = heading in ("needs", "request", "spare")
        table.add_column(heading, justify="right" if is_size else "left", no_wrap=heading != "job", overflow="fold")
    return table


def _speed(has_speeds: bool) -> list[str]:
    return ["speed"] if has_speeds else []


def _speed_text(speed: Speed | None) -> str:
    return "-" if speed is None else f"{speed.expected:.2f} ({speed.low:.2f} to {speed.high:.2f})"


def _speeds_text(pair: Pair) -> str:
    return "-" if pair.speeds is None else ", ".join(f"{speed.expected:.2f}" for speed in pair.speeds)


def _letter(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    text = ""
    while True:
        text = chr(ord("A") + number % 26) + text
        number = number // 26 - 1
        if number < 0:
            return text
