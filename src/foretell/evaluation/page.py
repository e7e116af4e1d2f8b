"""A self-contained HTML page with the figures of an evaluation."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from foretell.evaluation import tables
from foretell.evaluation.metrics import OURS, REQUEST, Figures, Judged
from foretell.evaluation.statistics import Draws, Factor
from foretell.report.static_page import document, plotly_objects, scrolling_table
from foretell.units import GIB

_STYLE = """
:root { color-scheme: light; --text: #1c2330; --soft: #667; --line: #ccd; --back: #fff; } /* as the charts */
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
tr.ours td { font-weight: 600; }
"""


def render(
    judged: Sequence[Judged],
    figures: Sequence[Figures],
    factors: Sequence[Factor],
    draws: Sequence[Draws],
    *,
    title: str,
    about: str,
) -> str:
    plotly = plotly_objects()
    drawn = [
        ("Errors by tool", "Each point is a run that did not run out of memory.", _error_boxes(plotly, judged)),
        ("Estimate against measurement", "On the line, both are equal.", _estimate_against_truth(plotly, judged)),
        (
            "Failures against errors",
            "The share of runs that fail if given only the estimate, against the median error. Lower left is better.",
            _quadrants(plotly, figures),
        ),
        ("Residuals by batch size", "foretell's signed error.", _residuals(plotly, judged)),
    ]
    parts = [
        f"<p>{html.escape(about)}</p>",
        _table(tables.HEADINGS, [(tables.figure_row(each), each.tool == OURS) for each in figures]),
    ]
    for number, (heading, text, figure) in enumerate(drawn):
        parts.append(f"<h2>{heading}</h2><p>{text}</p>")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False}))
    parts += [
        "<h2>Factors that explain the error</h2><p>ANOVA, type II, of foretell's relative error.</p>",
        _table(tables.FACTOR_HEADINGS, [(tables.factor_row(each), False) for each in factors]),
        "<h2>Random configurations</h2><p>Bootstrap: a model at random, then one of its measured runs.</p>",
        _table(tables.DRAWS_HEADINGS, [(tables.draws_row(each), each.tool == OURS) for each in draws]),
    ]
    return document(title, parts, style=_STYLE)


def _table(headings: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]]) -> str:
    head = [f"<th>{html.escape(heading)}</th>" for heading in headings]
    body = [
        f"<tr{' class=ours' if is_ours else ''}>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
        for row, is_ours in rows
    ]
    return scrolling_table(head, body)


def _label(each: Judged) -> str:
    words = " ".join(each.case.arguments).replace("--", "")
    return f"{each.case.key}<br>{html.escape(words)}<br>{each.case.gpu}"


def _of_tool(judged: Sequence[Judged], tool: str) -> list[Judged]:
    return [each for each in judged if each.tool == tool and each.error is not None]


def _error_boxes(plotly: Any, judged: Sequence[Judged]) -> Any:
    figure = plotly.Figure()
    for tool in dict.fromkeys(each.tool for each in judged if each.tool != REQUEST):
        rows = _of_tool(judged, tool)
        figure.add_trace(
            plotly.Box(
                x=[each.case.set for each in rows],
                y=[100 * (each.error or 0) for each in rows],
                name=tool,
                boxpoints="outliers",
                text=[_label(each) for each in rows],
            )
        )
    figure.update_layout(boxmode="group", yaxis={"title": "error, %", "range": [-60, 60]}, **_LAYOUT)
    return figure


def _estimate_against_truth(plotly: Any, judged: Sequence[Judged]) -> Any:
    figure = plotly.Figure()
    rows = _of_tool(judged, OURS)
    for name in dict.fromkeys(each.case.set for each in rows):
        own = [each for each in rows if each.case.set == name]
        figure.add_trace(
            plotly.Scattergl(
                x=[each.case.measured_bytes / GIB for each in own],
                y=[(each.num_bytes or 0) / GIB for each in own],
                mode="markers",
                marker={"size": 5},
                name=name,
                text=[_label(each) for each in own],
            )
        )
    ends = [0.5, 64]
    figure.add_trace(plotly.Scatter(x=ends, y=ends, mode="lines", line={"color": "gray", "width": 1}, showlegend=False))
    figure.update_layout(
        xaxis={"title": "measured, GiB", "type": "log"}, yaxis={"title": "estimate, GiB", "type": "log"}, **_LAYOUT
    )
    return figure


def _quadrants(plotly: Any, figures: Sequence[Figures]) -> Any:
    figure = plotly.Figure()
    known = [each for each in figures if each.median_error is not None and each.failure_probability is not None]
    for tool in dict.fromkeys(each.tool for each in known):
        own = [each for each in known if each.tool == tool]
        figure.add_trace(
            plotly.Scatter(
                x=[100 * (each.median_error or 0) for each in own],
                y=[100 * (each.failure_probability or 0) for each in own],
                mode="markers+text",
                text=[each.set for each in own],
                textposition="top center",
                marker={"size": 10},
                name=tool,
            )
        )
    figure.add_hline(y=50, line={"color": "gray", "width": 1, "dash": "dot"})
    figure.add_vline(x=10, line={"color": "gray", "width": 1, "dash": "dot"})
    figure.update_layout(xaxis={"title": "median error, %"}, yaxis={"title": "PEF, %"}, **_LAYOUT)
    return figure


def _residuals(plotly: Any, judged: Sequence[Judged]) -> Any:
    figure = plotly.Figure()
    rows = [each for each in _of_tool(judged, OURS) if "batch_size" in each.case.factors]
    for name in dict.fromkeys(each.case.set for each in rows):
        own = [each for each in rows if each.case.set == name]
        figure.add_trace(
            plotly.Scattergl(
                x=[each.case.factors["batch_size"] for each in own],
                y=[100 * (each.error or 0) for each in own],
                mode="markers",
                marker={"size": 5},
                name=name,
                text=[_label(each) for each in own],
            )
        )
    figure.update_layout(
        xaxis={"title": "batch size", "type": "log"}, yaxis={"title": "error, %", "range": [-60, 60]}, **_LAYOUT
    )
    return figure


_LAYOUT = {
    "height": 460,
    "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
    "legend": {"orientation": "h", "y": 1.08},
    "template": "plotly_white",
}
