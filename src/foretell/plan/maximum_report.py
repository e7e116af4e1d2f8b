"""The answer of a search as text and as JSON."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.plain import to_plain
from foretell.plan.knobs import Knob
from foretell.plan.maximum import Evaluation, Maximum
from foretell.report import json as estimates
from foretell.units import format_bytes

SCHEMA = "foretell.maximum/1"
COLORS = {"fits": "green", "does not fit": "red", "failed": "yellow"}


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(found: Maximum, *, key: str | None = None) -> str:
    return json.dumps(document(found, key=key), indent=2)


def document(found: Maximum, *, key: str | None = None) -> dict[str, Any]:
    """`key`: the name of the value; that of the knob if not given (`--seq-len`: `seq_len`)."""
    values = found.values
    return {
        key or key_of(found.knob): found.value,
        "schema": SCHEMA,
        "value": found.value,
        "knob": {"kind": found.knob.kind, "name": found.knob.name},
        "gpu": {"name": found.job.gpu.name, "total_bytes": found.job.gpu.total_bytes},
        "estimate": None if found.estimate is None else estimates.document(found.estimate),
        "above": found.above,
        "is_certain": found.is_certain,
        "min": values[0],
        "max": values[-1],
        "multiple_of": values.step,
        "safety_bytes": found.safety_bytes,
        "need": None if found.need is None else to_plain(found.need),
        "evaluations": [evaluation_document(each) for each in found.evaluations],
        "notes": list(found.notes),
    }


def key_of(knob: Knob) -> str:
    """The last part of its name, as a Python name."""
    last = re.split(r"[.:]", knob.name.strip("=-+{}"))[-1]
    return {"dataloader": "batch_size", "gpus": "world_size"}.get(knob.kind) or re.sub(r"\W", "_", last)


def evaluation_document(each: Evaluation) -> dict[str, Any]:
    estimate = each.estimate
    sizes: dict[str, int | float | None] = dict.fromkeys(
        ("allocated_bytes", "reserved_bytes", "device_bytes", "request_bytes", "spare_bytes", "seconds")
    )
    if estimate is not None:
        sizes = {
            "allocated_bytes": estimate.peak.allocated_bytes,
            "reserved_bytes": estimate.peak.reserved_bytes,
            "device_bytes": estimate.device_bytes,
            "request_bytes": estimate.request_bytes,
            "spare_bytes": estimate.spare_bytes,
            "seconds": each.seconds,
        }
    return {"value": each.value, "verdict": each.verdict, "problem": each.problem, **sizes}


# --- text -------------------------------------------------------------------------------------------------------------


def line_of(knob: Knob, each: Evaluation) -> str:
    """The progress of a search."""
    if each.estimate is None:
        return f"{knob.name} {each.value}: failed. {(each.problem or '').splitlines()[0]}"
    reserved = format_bytes(each.estimate.peak.reserved_bytes)
    return f"{knob.name} {each.value}: {each.verdict}, {reserved} reserved, {each.seconds or 0:.1f} s"


def render(found: Maximum, console: Console) -> None:
    console.print(Padding(_answer(found), (1, 2, 1, 2)))
    console.print(Padding(_table(found), (0, 2, 0, 2)))
    for note in found.notes:
        console.print(Padding(Text(f"! {note}", style="yellow"), (0, 2, 0, 2)))
    if found.value is not None:
        how = _how(found, found.value)
        console.print(Padding(Text(how, style="bright_black"), (1, 2, 0, 2)))


def _answer(found: Maximum) -> Text:
    card = f"{found.job.gpu.device_name} ({found.job.gpu.name})"
    name, first, last = found.knob.name, found.values[0], found.values[-1]
    if found.value is None:
        text = Text.assemble(("NOTHING FITS", "bold red"), f" on {card}: no {name} of {first} to {last}.")
        if found.need is not None:
            smallest = min(each.value for each in found.evaluations if each.estimate is not None)
            text.append(f" {smallest} needs {format_bytes(found.need.device_bytes)}.")
            if found.need.smallest_gpus:
                text.append(f" It fits on {', '.join(found.need.smallest_gpus)}.")
        return text
    estimate = found.estimate
    assert estimate is not None, found.value
    needs, of = format_bytes(estimate.device_bytes), format_bytes(estimate.available_bytes)
    text = Text.assemble(f"The largest {name} on {card} is ", (str(found.value), "bold green"))
    text.append(f": it needs {needs} of {of}")
    if found.safety_bytes:
        text.append(f", with {format_bytes(found.safety_bytes)} left free")
    if found.above == "range":
        end = "the number of samples, or --max" if found.knob.kind == "dataloader" else f"--max {last}"
        text.append(f". That is the end of the range ({end}); larger values have not been tried")
    return text.append(".")


def _table(found: Maximum) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False)
    table.add_column(found.knob.name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("device", "request", "spare"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in found.evaluations:
        sizes = evaluation_document(each)
        is_known = each.estimate is not None and each.estimate.verdict == "fits"
        columns = ("device_bytes", "request_bytes", "spare_bytes")
        cells = [format_bytes(sizes[name]) if is_known else "" for name in columns]
        remark = "the largest" if each.value == found.value else ""
        verdict = Text(each.verdict, style=COLORS[each.verdict])
        table.add_row(str(each.value), verdict, *cells, Text(remark, style="bold"))
    return table


def _how(found: Maximum, value: int) -> str:
    """What to write to get this value."""
    if found.knob.kind == "arg":
        return f"with it: {shlex.join(found.knob.set(found.job, str(value)).command)}"
    if found.knob.kind == "dataloader":
        return f"with it: DataLoader(..., batch_size={value})"
    return f"with it: {found.knob.name} = {value}"
