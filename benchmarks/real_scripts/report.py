"""The results as a table: in the terminal, and in docs/real-scripts.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.real_scripts.script import Result, Script, problem
from rich import box
from rich.table import Table

from foretell.units import format_bytes

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "real-scripts.md"
BEGIN, END = "<!-- made by make real-scripts -->", "<!-- end -->"
COLUMNS = ("script", "from", "outcome", "exit", "steps", "seconds", "allocated", "reserved", "device", "remarks")


_FOLDERS = re.compile(r"/\S*/(?=[^/\s]+\.py:)")
"""Of files that messages name: they differ between machines."""


def table(scripts: Sequence[Script], results: Mapping[str, Result]) -> Table:
    """Without the origin, which is too long for a terminal."""
    shown = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(COLUMNS):
        if column != "from":
            shown.add_column(column, no_wrap=number < len(COLUMNS) - 1)
    for script in scripts:
        if script.name in results:
            name, _, *cells = _cells(script, results[script.name])
            shown.add_row(name, *cells)
    return shown


def write(scripts: Sequence[Script], results: Mapping[str, Result], document: Path = DOCUMENT) -> None:
    """Replace the rows of these results in the document. The rows of other scripts stay; the text around the
    table is written by hand."""
    before, _, rest = document.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines() if line.startswith("| ")}
    for script in scripts:
        if script.name in results:
            cells = (cell.replace("|", "\\|") for cell in _cells(script, results[script.name]))
            rows[script.name] = "| " + " | ".join(cells) + " |"
    shown = [rows[script.name] for script in scripts if script.name in rows]
    document.write_text(f"{before}{BEGIN}\n\n{_markdown(shown)}\n\n{END}{after}")


def _markdown(rows: Sequence[str]) -> str:
    outcomes = Counter(row.split(" | ")[COLUMNS.index("outcome")] for row in rows)
    lines = [
        f"Commands: {len(rows)}; a number: {outcomes['fits'] + outcomes['out of memory']}; "
        f"a reason why there is none: {outcomes['no number']}; wrong: {outcomes['wrong']}.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|",
        *rows,
    ]
    return "\n".join(lines)


def _cells(script: Script, result: Result) -> list[str]:
    wrong = problem(script, result)
    sizes = (result.allocated_bytes, result.reserved_bytes, result.device_bytes)
    reason = result.message.partition(". ")[0] if result.verdict is None and not wrong else ""
    remarks = [_FOLDERS.sub("", each) for each in (wrong or "", script.remark, reason)]
    if result.needed_bytes is not None:
        remarks.append(f"needs {format_bytes(result.needed_bytes)}")
    if result.ended_by and not wrong:
        remarks.append(f"incomplete: {result.ended_by}")
    if result.said_bytes is not None and result.said_bytes == result.allocated_bytes:
        remarks.append("the script itself says the same")
    return [
        script.name,
        script.origin + (" (stand-in)" if script.is_stand_in else ""),
        "wrong" if wrong else {"fits": "fits", "oom": "out of memory"}.get(result.verdict or "", "no number"),
        str(result.exit_code),
        str(result.num_steps) if result.verdict else "",
        f"{result.seconds:.0f}",
        *(format_bytes(size) if result.verdict else "" for size in sizes),
        "; ".join(filter(None, remarks)),
    ]
