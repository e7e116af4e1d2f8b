"""Reads the operators of the recorded step from a capture folder (protocol/operators.py)."""

from __future__ import annotations

import marshal
from array import array
from pathlib import Path
from typing import Any, cast

from foretell.protocol.operators import COLUMNS, KINDS
from foretell.trace.journal import DAMAGED
from foretell.trace.records import PHASES, Operators, RecordedStep


def read_operators(directory: Path, pid: int | None) -> dict[str, Any]:
    """Fields of the trace; nothing if they were not recorded, or the process died while writing them."""
    try:
        told = marshal.loads((directory / f"operators-{pid}.marshal").read_bytes())
        columns = {name: array(letter, told["columns"][name]) for name, letter in COLUMNS.items()}
        if len({len(column) for column in columns.values()}) != 1 or told["kind"] not in KINDS:
            raise ValueError("columns of different lengths")
        step = RecordedStep(
            kind=told["kind"],
            step=int(told["step"]),
            begin_us=int(told["begin_us"]),
            end_us=int(told["end_us"]),
            cpu_us=int(told["cpu_us"]),
            delay_us=int(told["delay_us"]),
            loop_us=float(told["loop_us"]),
            phases=tuple((int(time_us), cast(Any, str(phase))) for time_us, phase in told["phases"] if phase in PHASES),
        )
        signatures = tuple(map(str, told["signatures"]))
    except (FileNotFoundError, *DAMAGED):
        return {}
    return {"operators": Operators(**columns), "signatures": signatures, "recorded_step": step}
