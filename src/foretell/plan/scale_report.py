"""How many GPUs a job needs, as a table in a terminal, as CSV, as JSON, and as an HTML page with curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from foretell.plan import sweep_report
from foretell.plan.scale import Scale, Way, is_tight
from foretell.records import Gpu
from foretell.units import format_bytes

SCHEMA = "foretell.scale/1"


def answers(found: Scale) -> Iterator[str]:
    """A sentence for each combination of the other knobs; the best is the first."""
    knobs, best = found.sweep.knobs[1:], found.best
    card = f"{found.sweep.job.gpu.device_name} ({found.sweep.job.gpu.name})"
    first = best or found.ways[0]
    if first.smallest is None:
        yield f"No number of GPUs is enough on {card}{_with(found, first)}: {first.why}."
    else:
        verb = "is" if first.smallest == 1 else "are"
        enough = f"{sweep_report.num_gpus(first.smallest)} of {card} {verb} enough"
        yield f"{enough}{_with(found, first)}: {_needs(found, first)}."
    for way in found.ways:
        if way is not first:
            size = way.smallest
            answer = way.why if size is None else f"{sweep_report.num_gpus(size)}, {_needs(found, way)}"
            yield f"{sweep_report.setting(knobs, way.values)}: {answer}."


def _with(found: Scale, way: Way) -> str:
    return f" with {sweep_report.setting(found.sweep.knobs[1:], way.values)}" if way.values else ""


def _needs(found: Scale, way: Way) -> str:
    point = found.point(way)
    assert point.device_bytes is not None, way
    return f"a rank needs {format_bytes(point.device_bytes)} of {format_bytes(found.sweep.available_bytes)}; {way.why}"


# --- text -------------------------------------------------------------------------------------------------------------


def render(found: Scale, console: Console) -> None:
    first, *others = answers(found)
    text = Text(first, style="bold green" if found.smallest is not None else "bold red")
    console.print(Padding(text, (1, 2, 0 if others else 1, 2)))
    for number, answer in enumerate(others):
        console.print(Padding(Text(answer), (0, 2, 1 if number == len(others) - 1 else 0, 2)))
    console.print(Padding(sweep_report.table_of(found.sweep), (0, 2, 0, 2)))
    for note in notes_of(found):
        console.print(Padding(Text(f"! {note}", style="yellow"), (0, 2, 0, 2)))


def notes_of(found: Scale) -> Iterator[str]:
    """What the reader of the answer should know."""
    for note in sweep_report.notes_of(found.sweep):
        if not note.startswith("GPUs has no effect"):  # the answer says it
            yield note
    for way in found.ways:
        if way.smallest is not None and is_tight(point := found.point(way), found.sweep.available_bytes):
            what = sweep_report.setting(found.sweep.knobs, point.values)
            request = format_bytes(point.request_bytes or 0)
            yield f"{what}: it is tight; {request}, which is enough for 99 % of runs, is not there. --safe asks for it"


# --- files ------------------------------------------------------------------------------------------------------------


def to_csv(found: Scale) -> str:
    return sweep_report.to_csv(found.sweep)


def to_json(found: Scale) -> str:
    return json.dumps(document(found), indent=2)


def document(found: Scale) -> dict[str, Any]:
    swept = sweep_report.document(found.sweep)
    keys = [knob["key"] for knob in swept["knobs"]]
    return {
        **swept,
        "schema": SCHEMA,
        "smallest": found.smallest,
        "ways": [
            {"values": sweep_report.by_key(keys[1:], way.values), "smallest": way.smallest, "why": way.why}
            for way in found.ways
        ],
        "notes": list(notes_of(found)),
    }


def to_html(found: Scale, *, cards: Sequence[Gpu] = ()) -> str:
    return sweep_report.to_html(found.sweep, cards=cards, answer=" ".join(answers(found)))
