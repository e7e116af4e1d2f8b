"""The frame of a self-contained HTML page of tables and charts: head, common style, scrolling tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from foretell.errors import UnsupportedError

_STYLE = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #667; --line: #dde; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7ee; --soft: #99a; --line: #333a48; --back: #14171d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto;
       max-width: 74rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p { color: var(--soft); max-width: 60rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th { text-align: right; color: var(--soft); font-weight: 500; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
"""


def document(title: str, parts: Sequence[str], *, style: str, tone: str = "") -> str:
    """A whole page; `parts` are HTML, `style` is added to the common one, `tone` is the class of the heading."""
    name = escape(title)
    head = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{name}</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{_STYLE}{style}</style></head><body><h1 class='{tone}'>{name}</h1>",
    ]
    return "\n".join(part for part in (*head, *parts, "</body></html>") if part)


def plotly_objects() -> Any:
    """For charts; such a page needs the script of plotly, which is in the page."""
    try:
        import plotly.graph_objects
    except ImportError:
        raise UnsupportedError("--html needs plotly: pip install 'foretell[evaluate]'.") from None
    return plotly.graph_objects


def scrolling_table(head: Sequence[str], rows: Sequence[str]) -> str:
    """`head` are whole `<th>` cells, `rows` whole `<tr>` rows."""
    return (
        f"<div class='scroll'><table><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
