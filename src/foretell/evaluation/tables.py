"""The figures as tables: for the terminal (rich) and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from foretell.evaluation.metrics import OURS, CauseFigures, Figures, RunFigures
from foretell.evaluation.pairs import SpeedFigures
from foretell.evaluation.statistics import Draws, Factor
from foretell.units import MIB, format_bytes

if TYPE_CHECKING:
    from foretell.evaluation.instant import ClassFigures

HEADINGS = (
    "set", "tool", "runs", "median", "p90", "bias", "OOM correct", "missed", "false", "PEF", "MCP", "inside", "width",
    "over", "holds", "seconds",
)  # fmt: skip
_NOTHING = ""


def figure_row(figures: Figures) -> tuple[str, ...]:
    decided = figures.oom_right + figures.oom_missed + figures.oom_false_alarms
    return (
        figures.set,
        figures.tool,
        str(figures.num_runs),
        _percent(figures.median_error),
        _percent(figures.p90_error),
        _percent(figures.bias, sign=True),
        f"{figures.oom_right / decided:.0%}" if decided else _NOTHING,
        str(figures.oom_missed) if decided else _NOTHING,
        str(figures.oom_false_alarms) if decided else _NOTHING,
        _percent(figures.failure_probability, digits=1),
        _signed_bytes(figures.saved_bytes),
        _percent(figures.interval_coverage, digits=1),
        _percent(figures.interval_width, digits=1),
        _percent(figures.request_over_truth, digits=1),
        _percent(figures.request_holds, digits=1),
        _NOTHING if figures.seconds is None else f"{figures.seconds:.1f}",
    )


DECISION_HEADINGS = ("set", "tool", "runs", "right", "missed", "false", "over the card")


def decision_row(figures: Figures) -> tuple[str, ...]:
    """Of runs of which is known only whether they fitted."""
    return (
        figures.set,
        figures.tool,
        str(figures.num_runs),
        _percent(figures.oom_right / figures.num_runs, digits=1),
        str(figures.oom_missed),
        str(figures.oom_false_alarms),
        _percent(figures.over_card, digits=1),
    )


def is_decision(figures: Figures) -> bool:
    return figures.metric == "memory" and figures.saved_bytes is None and not figures.num_errors


TIME_HEADINGS = ("set", "tool", "metric", "runs", "median", "p90", "mean abs.", "bias", "inside", "width")


def time_row(figures: Figures) -> tuple[str, ...]:
    """Errors of times in percent; those of shares are differences of shares, in percentage points."""
    return (
        figures.set,
        figures.tool,
        figures.metric,
        str(figures.num_runs),
        _percent(figures.median_error, digits=1),
        _percent(figures.p90_error, digits=1),
        _percent(figures.mean_abs_error, digits=1),
        _percent(figures.bias, digits=1, sign=True),
        _percent(figures.interval_coverage, digits=1),
        _percent(figures.interval_width, digits=1),
    )


def cause_row(figures: CauseFigures) -> tuple[str, ...]:
    width, request = _percent(figures.width, digits=1), _percent(figures.request, digits=1)
    return figures.set, figures.cause, str(figures.num_runs), width, request


RUN_HEADINGS = ("run", "job", "measured", "error", "of it", "inside", "the interval, MiB below and above")
RUN_NOTE = "The runs of each set whose estimates are the furthest off:"


def run_row(figures: RunFigures) -> tuple[str, ...]:
    parts = (f"{name} -{below // MIB:,} +{above // MIB:,}" for name, (below, above) in figures.causes.items())
    return (
        figures.run,
        figures.job.replace("--", ""),
        format_bytes(figures.measured_bytes),
        f"{(figures.estimated_bytes - figures.measured_bytes) / MIB:+,.0f} MiB",
        _percent(figures.error, digits=1, sign=True),
        "yes" if figures.is_inside else "no",
        "; ".join(parts),
    )


def factor_row(factor: Factor) -> tuple[str, ...]:
    levels = "numeric" if factor.num_levels is None else f"{factor.num_levels} levels"
    p_value = "< 0.001" if factor.p_value < 0.001 else f"{factor.p_value:.3f}"
    return factor.set, factor.name, levels, _percent(factor.share, digits=1), f"{factor.f_value:.1f}", p_value


def draws_row(draws: Draws) -> tuple[str, ...]:
    between = f"{_percent(draws.low)} to {_percent(draws.high)}"
    return draws.set, draws.tool, draws.figure, _percent(draws.mean), between


SPEED_HEADINGS = ("set", "tool", "speeds", "median", "p90", "mean", "bias", "inside", "width")


def speed_row(figures: SpeedFigures) -> tuple[str, ...]:
    """Errors of relative speeds, which are shares themselves: no percent of percent."""
    inside, width = figures.interval_coverage, figures.interval_width
    errors = (figures.median_error, figures.p90_error, figures.mean_abs_error)
    return (
        figures.set,
        figures.tool,
        str(figures.num_runs),
        *(f"{error:.3f}" for error in errors),
        f"{figures.bias:+.3f}",
        _percent(inside, digits=1),
        _NOTHING if width is None else f"{width:.2f}",
    )


def print_speeds(figures: Sequence[SpeedFigures], console: Console) -> None:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for heading in SPEED_HEADINGS[1:]:
        table.add_column(heading, justify="left" if heading == "tool" else "right", no_wrap=True)
    for number, each in enumerate(figures):
        table.add_row(*speed_row(each)[1:], style="" if number else "bold")
    console.print(table)
    console.print("  speeds of two jobs on one card, from how busy each was measured to keep it alone")


DECISION_NOTE = "  over the card: of the jobs that ran, those whose upper end or request is more than the card has"
CAUSE_HEADINGS = ("set", "cause", "runs", "width", "in the request")
FACTOR_HEADINGS = ("set", "factor", "levels", "explains", "F", "p")
DRAWS_HEADINGS = ("set", "tool", "figure", "mean", "95 % interval")


def print_figures(figures: Sequence[Figures], console: Console) -> None:
    decisions = [each for each in figures if is_decision(each)]
    memory = [each for each in figures if each.metric == "memory" and not is_decision(each)]
    timed = [each for each in figures if each.metric != "memory"]
    if memory:
        _print_table(HEADINGS, [figure_row(each) for each in memory], console, bold=OURS)
    if decisions:
        _print_table(DECISION_HEADINGS, [decision_row(each) for each in decisions], console, bold=OURS)
        console.print(DECISION_NOTE, highlight=False)
    if timed:
        _print_table(TIME_HEADINGS, [time_row(each) for each in timed], console, bold=OURS)


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, *, bold: str) -> None:
    """The first column is the set, the second the tool."""
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("set", "tool", "metric") else "right", no_wrap=True)
    previous = None
    for name, tool, *rest in rows:
        if previous not in (None, name):
            table.add_row()
        table.add_row(name if name != previous else "", tool, *rest, style="bold" if tool == bold else "")
        previous = name
    console.print(table)


INSTANT_HEADINGS = (
    "set", "tool", "runs", "answers", "median", "p90", "bias", "class right", "too low", "OOM correct", "inside",
    "width",
)  # fmt: skip


def instant_row(figures: Figures, classes: ClassFigures) -> tuple[str, ...]:
    decided = figures.oom_right + figures.oom_missed + figures.oom_false_alarms
    return (
        figures.set,
        figures.tool,
        str(figures.num_runs),
        str(classes.num_answers),
        _percent(figures.median_error),
        _percent(figures.p90_error),
        _percent(figures.bias, sign=True),
        f"{_percent(classes.accuracy, digits=1)} of {classes.class_bytes >> 30} GiB",
        _percent(classes.too_low, digits=1),
        f"{figures.oom_right / decided:.0%}" if decided else _NOTHING,
        _percent(figures.interval_coverage, digits=1),
        _percent(figures.interval_width, digits=1),
    )


def print_instant(
    figures: Sequence[Figures], classes: Sequence[ClassFigures], timed: Sequence[Figures], console: Console
) -> None:
    """Sets in turn, each with all of its estimators; then their times and utilization."""
    by_key = {(each.set, each.tool): each for each in classes}
    rows = [instant_row(each, by_key[each.set, each.tool]) for each in figures]
    order = list(dict.fromkeys(row[0] for row in rows))
    if rows:
        _print_table(INSTANT_HEADINGS, sorted(rows, key=lambda row: order.index(row[0])), console, bold="guess")
    if timed:
        console.print()
        _print_table(TIME_HEADINGS, [time_row(each) for each in timed], console, bold="guess")


def print_causes(causes: Sequence[CauseFigures], console: Console) -> None:
    """What the intervals are made of."""
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for number, heading in enumerate(CAUSE_HEADINGS):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    for each in causes:
        table.add_row(*cause_row(each))
    console.print("\nwhat the intervals are made of:")
    console.print(table)


def print_runs(runs: Sequence[RunFigures], console: Console) -> None:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for number, heading in enumerate(RUN_HEADINGS):
        table.add_column(heading, justify="right" if 1 < number < 6 else "left", no_wrap=number != 1, overflow="fold")
    for each in runs:
        table.add_row(*run_row(each))
    console.print(f"\n{RUN_NOTE}")
    console.print(table)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---" if i < 2 else "---:" for i in range(len(headings))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(value: float | None, *, digits: int = 2, sign: bool = False) -> str:
    return _NOTHING if value is None else f"{100 * value:{'+' if sign else ''}.{digits}f} %"


def _signed_bytes(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{'-' if value < 0 else ''}{format_bytes(int(abs(value)))}"
