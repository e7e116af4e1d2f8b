"""A sweep as a table in a terminal, as CSV, as JSON, and as an HTML page with curves."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell import gpus
from foretell.masking import mask_command
from foretell.plain import to_plain
from foretell.plan.knobs import Knob
from foretell.plan.maximum_report import COLORS, key_of
from foretell.plan.sweep import Point, Sweep
from foretell.records import Gpu, Performance
from foretell.report import json as json_report
from foretell.report.performance import duration
from foretell.report.static_page import document as page_of
from foretell.report.static_page import plotly_objects, scrolling_table
from foretell.units import GIB, format_bytes

SCHEMA = "foretell.sweep/1"
_WIDEST_NAME = 16
"""Above a column of the table; of a longer one the last part is shown."""
SIZES = ("reserved_bytes", "device_bytes", "request_bytes")


def line_of(knobs: Sequence[Knob], point: Point) -> str:
    """The progress of a sweep."""
    what = setting(knobs, point.values)
    if point.estimate is None:
        return f"{what}: failed. {_first_line(point)}"
    reserved, seconds = format_bytes(point.estimate.peak.reserved_bytes), point.estimate.seconds.get("total", 0.0)
    return f"{what}: {point.verdict}, {reserved} reserved, {seconds:.1f} s"


def setting(knobs: Sequence[Knob], values: Sequence[str]) -> str:
    """`8 GPUs, --batch-size 16`."""
    pairs = zip(knobs, values, strict=True)
    return ", ".join(num_gpus(value) if knob.kind == "gpus" else f"{knob.name} {value}" for knob, value in pairs)


def num_gpus(number: int | str) -> str:
    return "1 GPU" if int(number) == 1 else f"{int(number):,} GPUs"


def _first_line(point: Point) -> str:
    return (point.problem or "").partition("\n")[0]


def _spare(found: Sweep, point: Point) -> int | None:
    return None if point.device_bytes is None else found.available_bytes - point.device_bytes


def notes_of(found: Sweep) -> Iterator[str]:
    failures: dict[str, list[Point]] = {}
    for point in found.points:
        if point.problem is not None:  # numbers in it may differ
            failures.setdefault(re.sub(r"\d+", "N", _first_line(point)), []).append(point)
    for failed in failures.values():
        others = len(failed) - 1
        more = f" and {others} {'other' if others == 1 else 'others'}" if others else ""
        yield f"failed with {setting(found.knobs, failed[0].values)}{more}: {_first_line(failed[0])}"
    for knob in found.without_effect:
        yield f"{knob.name} has no effect: the memory is the same with each of its values"


# --- text -------------------------------------------------------------------------------------------------------------


def render(found: Sweep, console: Console) -> None:
    gpu, free = found.job.gpu, format_bytes(found.available_bytes)
    num_fitting = sum(point.verdict == "fits" for point in found.points)
    head = Text(f"{num_fitting} of {len(found.points)} fit on {gpu.device_name} ({gpu.name}), which has {free}:")
    console.print(Padding(head, (1, 2, 1, 2)))
    console.print(Padding(table_of(found), (0, 2, 0, 2)))
    for note in notes_of(found):
        console.print(Padding(Text(f"! {note}", style="yellow"), (0, 2, 0, 2)))


def table_of(found: Sweep) -> Table:
    is_timed = any(_performance(point) for point in found.points)
    has_ranks = any(_worst_rank(point) is not None for point in found.points)
    table = Table(box=None, padding=(0, 2 - is_timed, 0, 0), header_style="bright_black", show_edge=False)
    for knob in found.knobs:
        name = knob.name if len(knob.name) <= _WIDEST_NAME else re.split(r"[.:]", knob.name)[-1]
        table.add_column(name, justify="right", max_width=_WIDEST_NAME, overflow="fold")
    table.add_column("", no_wrap=True)
    for heading in ("device", "request", "spare"):
        table.add_column(heading, justify="right", no_wrap=True)
    if has_ranks:
        table.add_column("rank", justify="right", no_wrap=True)
    for heading in ("step", "samples/s", "busy") if is_timed else ():
        table.add_column(heading, justify="right", no_wrap=True)
    for point in found.points:
        sizes = (point.device_bytes, point.request_bytes, _spare(found, point))
        cells = ["" if size is None else format_bytes(size) for size in sizes]
        worst = _worst_rank(point)
        ranks = ["" if worst is None else str(worst)] if has_ranks else []
        verdict = Text(point.verdict, style=COLORS[point.verdict])
        table.add_row(*point.values, verdict, *cells, *ranks, *_time_cells(point))
    return table


def _worst_rank(point: Point) -> int | None:
    world = point.estimate.world if point.estimate is not None else None
    return None if world is None else world.worst_rank


def _performance(point: Point) -> Performance | None:
    """If times were asked for (--time) and it fits."""
    return point.estimate.performance if point.estimate is not None and point.verdict == "fits" else None


def _time_cells(point: Point) -> list[str]:
    found = _performance(point)
    if found is None:
        return []
    rate = found.time.samples_per_second
    return [duration(found.time.step_ms), "" if rate is None else f"{rate:,.0f}", f"{found.activity.gpu:.0%}"]


# --- files ------------------------------------------------------------------------------------------------------------


def to_csv(found: Sweep) -> str:
    """Bytes are integers; an empty cell is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = (knob.name for knob in found.knobs)
    writer.writerow([*names, "gpu", "verdict", *SIZES, "spare_bytes", "worst_rank", "problem"])
    for point in found.points:
        sizes = [getattr(point, name) for name in SIZES]
        others = (_spare(found, point), _worst_rank(point), _first_line(point))
        row = [*point.values, found.job.gpu.name, point.verdict, *sizes, *others]
        writer.writerow(["" if cell is None else cell for cell in row])
    return text.getvalue()


def to_json(found: Sweep) -> str:
    return json.dumps(document(found), indent=2)


def document(found: Sweep) -> dict[str, Any]:
    keys = [key_of(knob) for knob in found.knobs]
    names = keys if len(set(keys)) == len(keys) else [knob.name for knob in found.knobs]
    return {
        "schema": SCHEMA,
        "gpu": {"name": found.job.gpu.name, "total_bytes": found.job.gpu.total_bytes},
        "knobs": [
            {"key": name, "kind": knob.kind, "name": knob.name}
            for name, knob in zip(names, found.knobs, strict=True)
        ],
        "points": [_point_document(found, names, point) for point in found.points],
        "notes": list(notes_of(found)),
    }


def _point_document(found: Sweep, names: Sequence[str], point: Point) -> dict[str, Any]:
    return {
        "values": by_key(names, point.values),
        "verdict": point.verdict,
        **{name: getattr(point, name) for name in SIZES},
        "spare_bytes": _spare(found, point),
        "worst_rank": _worst_rank(point),
        "need": None if point.need is None else to_plain(point.need),
        "problem": point.problem,
        "estimate": None if point.estimate is None else json_report.document(point.estimate),
    }


def by_key(names: Sequence[str], values: Sequence[str]) -> dict[str, int | float | str]:
    return {name: _number(value) for name, value in zip(names, values, strict=True)}


def _number(value: str) -> int | float | str:
    if re.fullmatch(r"[+-]?[0-9]+", value):
        return int(value)
    return float(value) if re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?", value, re.IGNORECASE) else value


# --- page -------------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light; --text: #1c2330; --soft: #667; --line: #ccd; --back: #fff; } /* as the chart */
td.fits { color: #15803d; } td.not { color: #b91c1c; } td.failed { color: #a16207; } td:last-child { text-align: left; }
"""
_CARDS = ("rtx-3060", "rtx-4060", "rtx-4080", "rtx-4090", "rtx-5090", "a100-40gb", "l40s", "a100-80gb", "h200", "b200")
"""Whose memory is drawn unless others are named: those of the sizes that are common."""


def to_html(found: Sweep, *, cards: Sequence[Gpu] = (), answer: str = "") -> str:
    """A page with the curves of what each combination needs, against the memory of cards. `answer`: said first."""
    gpu = found.job.gpu
    command = html.escape(shlex.join(mask_command(found.job.command)))
    parts = [
        *([f"<p><strong>{html.escape(answer)}</strong></p>"] if answer else []),
        f"<p><code>{command}</code> on {html.escape(gpu.device_name)}. Device memory is what nvidia-smi shows: "
        "PyTorch's reserved memory, libraries and the CUDA context. A cross does not fit on this GPU; what it needs "
        "was found by a run on a card with more memory.</p>",
        _chart(found, list(cards) or _cards(found)).to_html(
            full_html=False, include_plotlyjs=True, config={"displaylogo": False}
        ),
        *(f"<p>{html.escape(note)}.</p>" for note in notes_of(found)),
        _html_table(found),
    ]
    return page_of(f"Memory of {os.path.basename(found.job.command[0])}", parts, style=_STYLE)


def _cards(found: Sweep) -> list[Gpu]:
    """The card of the job, and common ones up to the first that is large enough for all points."""
    most = max((point.device_bytes or 0 for point in found.points), default=0)
    common = sorted((gpus.find(name) for name in _CARDS), key=lambda gpu: gpu.total_bytes)
    enough = next((gpu.total_bytes for gpu in common if gpu.total_bytes >= most), most)
    others = [gpu for gpu in common if gpu.total_bytes <= enough and gpu.name != found.job.gpu.name]
    return [found.job.gpu, *others]


def _chart(found: Sweep, cards: Sequence[Gpu]) -> Any:
    plotly = plotly_objects()
    figure = plotly.Figure()
    across = _horizontal(found)
    is_numeric = not any(isinstance(_number(point.values[across]), str) for point in found.points)
    others = [number for number in range(len(found.knobs)) if number != across]
    groups: dict[str, list[Point]] = {}
    for point in found.points:
        name = ", ".join(f"{found.knobs[number].name} {point.values[number]}" for number in others)
        groups.setdefault(name, []).append(point)
    for name, points in groups.items():
        known = [point for point in points if point.device_bytes is not None]
        if is_numeric:
            known.sort(key=lambda point: float(_number(point.values[across])))
        figure.add_trace(
            plotly.Scatter(
                x=[_number(point.values[across]) if is_numeric else point.values[across] for point in known],
                y=[(point.device_bytes or 0) / GIB for point in known],
                mode="lines+markers",
                marker={"size": 9, "symbol": ["circle" if point.verdict == "fits" else "x" for point in known]},
                name=html.escape(name) or "device memory",
                text=[f"{point.verdict}, {format_bytes(point.device_bytes or 0)}" for point in known],
                hovertemplate="%{x}: %{text}<extra>%{fullData.name}</extra>",
            )
        )
    for card in cards:
        is_own = card.name == found.job.gpu.name
        figure.add_hline(
            y=card.total_bytes / GIB,
            line={"color": "#b91c1c" if is_own else "#94a3b8", "width": 2 if is_own else 1, "dash": "dash"},
            annotation={"text": f"{card.name} ({format_bytes(card.total_bytes)})", "font": {"size": 11}},
            annotation_position="top left",
        )
    most = max([*(point.device_bytes or 0 for point in found.points), *(card.total_bytes for card in cards)])
    figure.update_layout(
        height=520,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": 1.1},
        template="plotly_white",
        xaxis={"title": html.escape(found.knobs[across].name), **_axis(found, across, is_numeric=is_numeric)},
        yaxis={"title": "device memory, GiB", "range": [0, 1.08 * most / GIB]},
        showlegend=len(groups) > 1,
    )
    return figure


def _axis(found: Sweep, across: int, *, is_numeric: bool) -> dict[str, Any]:
    if not is_numeric:
        return {"type": "category"}
    if found.knobs[across].kind != "gpus":
        return {}
    sizes = sorted({int(point.values[across]) for point in found.points})
    return {"type": "log", "tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}


def _horizontal(found: Sweep) -> int:
    """The knob along the x axis: the first with several numbers, or the first."""
    for number in range(len(found.knobs)):
        values = {point.values[number] for point in found.points}
        if len(values) > 1 and not any(isinstance(_number(value), str) for value in values):
            return number
    return 0


def _html_table(found: Sweep) -> str:
    headings = [*(knob.name for knob in found.knobs), "reserved", "device", "request", "spare", ""]
    rows = []
    for point in found.points:
        sizes = [*(getattr(point, name) for name in SIZES), _spare(found, point)]
        cells = [*point.values, *("" if size is None else format_bytes(size) for size in sizes)]
        verdict = point.verdict + (f": {_first_line(point)}" if point.problem else "")
        tone = {"fits": "fits", "does not fit": "not", "failed": "failed"}[point.verdict]
        row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr>{row}<td class={tone}>{html.escape(verdict)}</td></tr>")
    return scrolling_table([f"<th>{html.escape(heading)}</th>" for heading in headings], rows)
