"""A difference as a self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from foretell.diff.compare import (
    BlockChange,
    Change,
    Difference,
    described,
    folded,
    outlook,
    percent,
    sentence,
    signed,
)
from foretell.diff.summary import Summary
from foretell.diff.text import PEAK_WORDS
from foretell.report.holders import words_of
from foretell.report.static_page import document, scrolling_table
from foretell.units import format_bytes

_STYLE = """
:root { --more: #c4314b; --less: #1f8a4c; }
@media (prefers-color-scheme: dark) { :root { --more: #ff6b81; --less: #4cc97f; } }
.soft { color: var(--soft); }
table { width: 100%; }
th.name, td.name { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; }
.more { color: var(--more); } .less { color: var(--less); }
td.bar { width: 12rem; } td.bar div { height: .7rem; border-radius: 2px; background: currentColor; opacity: .75; }
details summary { cursor: pointer; color: var(--soft); margin: .4rem 0; }
li { color: var(--soft); }
@media (max-width: 640px) { /* a name has a line of its own, the numbers are below it */
  tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); padding: .2rem 0; }
  th, td { border: 0; padding: .05rem .3rem; flex: 1 1 0; }
  th.name:empty, th:last-child:empty, td.bar { display: none; }
  th.name, td.name { flex: 1 0 100%; } .runs td.name { flex: 0 1 auto; }
}
"""
_ROWS = 20


def render(difference: Difference) -> str:
    rows = [*difference.steps, *(difference.outside_steps or ())]
    parts = [
        _runs(difference),
        _section("The peak", [(PEAK_WORDS[change.name], change) for change in difference.peaks]),
        _section("By category", [(words_of(change.name), change) for change in difference.categories or ()]),
        _section("By module", [(_folded_name(change), change) for change in folded(difference.modules or ())]),
        _blocks(folded(difference.blocks or ())),
        _section("By step, reserved", [(change.row.place, change.reserved) for change in rows]),
        _section("By step, allocated", [(change.row.place, change.allocated) for change in rows]),
        _facts(difference),
        _notes(difference),
    ]
    return document(sentence(difference), parts, style=_STYLE, tone=_tone(outlook(difference)))


def _runs(difference: Difference) -> str:
    rows = [_run("before", difference.before), _run("after", difference.after)]
    return f"<table class=runs><tbody>{''.join(rows)}</tbody></table>"


def _run(word: str, summary: Summary) -> str:
    is_oom = summary.verdict == "oom"
    verdict = f"<span class='{'more' if is_oom else 'less'}'>{'out of memory' if is_oom else 'fits'}</span>"
    cells = [word, f"<b>{escape(summary.path)}</b>", verdict, escape(summary.gpu), f"torch {escape(summary.torch)}"]
    return _row(cells, num_names=len(cells))


def _section(title: str, rows: Sequence[tuple[str, Change]]) -> str:
    headings = ("", "before", "after", "change", "", "")
    return _table(title, headings, 1, [([escape(name)], change) for name, change in rows])


def _blocks(changes: Sequence[BlockChange]) -> str:
    rows = []
    for change in changes:
        what, origin, number = map(escape, described(change))
        rows.append(([f"{what}<br><span class='soft'>{origin}</span>", number], change))
    return _table("Blocks at the peak", ("", "number", "before", "after", "change", "", ""), 1, rows)


def _table(title: str, headings: Sequence[str], num_names: int, rows: Sequence[tuple[list[str], Change]]) -> str:
    if not rows:
        return ""
    largest = max(abs(change.bytes) for _, change in rows) or 1
    drawn = [_row([*names, *_sizes(change, largest)], num_names, _tone(change.bytes)) for names, change in rows]
    head = [f"<th{' class=name' if n < num_names else ''}>{escape(h)}</th>" for n, h in enumerate(headings)]
    rest = ""
    if drawn[_ROWS:]:
        more = scrolling_table(head, drawn[_ROWS:])
        rest = f"<details><summary>{len(drawn) - _ROWS} more</summary>{more}</details>"
    return f"<h2>{escape(title)}</h2>{scrolling_table(head, drawn[:_ROWS])}{rest}"


def _row(cells: Sequence[str], num_names: int, tone: str = "") -> str:
    """The last cells have the colour of the change; the very last is its bar."""
    drawn = []
    for number, cell in enumerate(cells):
        kind = "name" if number < num_names else ""
        if tone and number >= len(cells) - 3:
            kind = f"{tone} bar" if number == len(cells) - 1 else tone
        drawn.append(f"<td class='{kind}'>{cell}</td>")
    return f"<tr>{''.join(drawn)}</tr>"


def _sizes(change: Change, largest: int) -> list[str]:
    bar = f"<div style='width:{abs(change.bytes) / largest:.1%}'></div>"
    before, after = format_bytes(change.before_bytes), format_bytes(change.after_bytes)
    return [before, after, signed(change.bytes), percent(change) if change.bytes else "", bar]


def _folded_name(change: Change) -> str:
    return f"{change.name} ({change.count})" if change.count > 1 else change.name


def _facts(difference: Difference) -> str:
    if not difference.facts:
        return ""
    rows = [_row([escape(fact.name), escape(fact.before), escape(fact.after)], 3) for fact in difference.facts]
    head = ("<th></th>", "<th class=name>before</th>", "<th class=name>after</th>")
    return f"<h2>Other differences</h2>{scrolling_table(head, rows)}"


def _notes(difference: Difference) -> str:
    if not difference.notes:
        return ""
    return f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in difference.notes)}</ul>"


def _tone(sign: int) -> str:
    return "more" if sign > 0 else "less" if sign < 0 else "soft"
