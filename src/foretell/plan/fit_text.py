"""A `Fit` in the terminal: the smallest card first, then all of them."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foretell.plan.fit import CardFit, CardVerdict, Fit
from foretell.report.performance import duration, interval
from foretell.units import GIB, format_bytes

_WORDS: dict[CardVerdict, tuple[str, str]] = {
    "fits": ("fits", "green"),
    "tight": ("tight", "yellow"),
    "oom": ("does not fit", "red"),
    "cannot_run": ("cannot run", "bright_black"),
    "unknown": ("unknown", "bright_black"),
}
"""Verdict in words, and its style."""
_LEGEND = (
    "Sizes in GiB. needs: as in nvidia-smi; spare: what is left after the request, which is enough for 99 % of runs; "
    "tight: it fits, but the request does not; "
)
_OF_COPIES = "copies: side by side, each with its own CUDA context."

_OF_TIMES = "step: how long a training step takes there, a model of the GPU; --json has the interval of each."


def render(fit: Fit, console: Console) -> None:
    console.print(Text(headline(fit), style="bold"))
    if fit.fastest is not None and fit.fastest.performance is not None:
        time = fit.fastest.performance.time
        takes = f"{duration(time.step_ms)} ({interval(time.step_low_ms, time.step_high_ms)})"
        console.print(Text(f"A step takes least on {fit.fastest.gpu.name}: about {takes}."))
    ran = [card for card in fit.cards if card.verdict in ("fits", "tight", "oom")]
    if ran:
        console.print(_table(ran))
    for line in _others(fit):
        console.print(line)
    timed = fit.fastest is not None
    console.print(Text(_LEGEND + (_OF_TIMES if timed else _OF_COPIES), style="bright_black"))
    runs = "1 run" if fit.num_runs == 1 else f"{fit.num_runs} runs"
    console.print(Text(f"{runs} of the job, torch {fit.estimate.torch_version}.", style="bright_black"))
    for note in dict.fromkeys((*fit.notes, *fit.estimate.caveats)):
        console.print(Text(f"note: {note}"))
    if fit.estimate.ended_by is not None:
        console.print(Text(f"incomplete: {fit.estimate.ended_by.message}", style="yellow"))


def headline(fit: Fit) -> str:
    smallest, num_cards = fit.smallest, len(fit.cards)
    among = "the only GPU asked for" if num_cards == 1 else f"any of the {num_cards} GPUs"
    if smallest is None:
        need = fit.estimate.need
        return f"Does not fit on {among}" + (f": it needs {format_bytes(need.device_bytes)}." if need else ".")
    name, memory = smallest.gpu.name, format_bytes(smallest.gpu.total_bytes)
    assert smallest.device_bytes is not None
    assert smallest.request_bytes is not None
    if smallest.verdict == "tight":
        return (
            f"Tight everywhere; the smallest GPU it fits on is {name} ({memory}). It needs "
            f"{format_bytes(smallest.device_bytes)}, but {format_bytes(smallest.request_bytes)} should be requested."
        )
    count = sum(card.verdict == "fits" for card in fit.cards)
    return (
        f"The smallest GPU it fits on is {name} ({memory}), with {format_bytes(smallest.spare_bytes or 0)} to spare. "
        f"It fits on {count} of {num_cards}."
    )


def _table(cards: list[CardFit]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1))  # 80 columns, with slices
    table.add_column("GPU", no_wrap=True)
    is_timed = any(card.performance for card in cards)
    for title in ("memory", "needs", "spare", "step" if is_timed else "copies"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for card in cards:
        word, style = _WORDS[card.verdict]
        table.add_row(
            card.gpu.name,
            _size(card.gpu.total_bytes),
            _size(card.device_bytes),
            _size(card.spare_bytes),
            _time(card) if is_timed else str(card.copies) if card.copies else "-",
            Text(word, style=style),
        )
    return table


def _time(card: CardFit) -> str:
    return "-" if card.performance is None else duration(card.performance.time.step_ms)


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.2f}"


def _others(fit: Fit) -> list[Text]:
    """A line for each reason why cards have no numbers."""
    names: dict[tuple[CardVerdict, str], list[str]] = {}
    for card in fit.cards:
        if card.verdict in ("cannot_run", "unknown"):
            names.setdefault((card.verdict, card.reason or ""), []).append(card.gpu.name)
    lines = []
    for (verdict, reason), of_cards in names.items():
        word, style = _WORDS[verdict]
        first_line = reason.partition("\n")[0]  # what follows is the end of the script's output
        lines.append(Text.assemble((word, style), f" on {', '.join(of_cards)}: {first_line}"))
    return lines
