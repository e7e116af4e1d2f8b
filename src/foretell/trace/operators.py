"""Reads the operators of the recorded step from a capture folder (protocol/operators.py)."""

from __future__ import annotations

import marshal
from array import array
from pathlib import Path
from typing import Any, cast

from foretell.plain import parse_json
from foretell.protocol.operators import COLUMNS, KINDS, LAYOUTS, LIST
from foretell.trace.journal import DAMAGED
from foretell.trace.records import PHASES, Operators, RecordedStep

_MOST_DIMENSIONS = 64
_LARGEST_SIZE = 1 << 62


def check_signature(text: str) -> None:
    """Raises a ValueError if it is not what protocol/operators.py says."""
    value = parse_json(text)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], list)):
        raise ValueError(f"the signature {text:.60} is not a name and a list of inputs")
    if not all(map(_is_input, value[1])):
        raise ValueError(f"the signature {text:.60} has an input that is not a tensor")


def _is_input(value: Any) -> bool:
    if not isinstance(value, list):
        return True
    return all(map(_is_input, value[1:])) if value[:1] == [LIST] else _is_tensor(value)


def _is_tensor(value: list[Any]) -> bool:
    if len(value) != 4 or not isinstance(value[1], list) or len(value[1]) > _MOST_DIMENSIONS:
        return False
    are_sizes = all(type(size) is int and 0 <= size <= _LARGEST_SIZE for size in value[1])
    return are_sizes and isinstance(value[0], str) and value[2] in LAYOUTS and isinstance(value[3], bool)


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
            loading_us=int(told.get("loading_us", 0)),
            loop_us=float(told["loop_us"]),
            phases=tuple((int(time_us), cast(Any, str(phase))) for time_us, phase in told["phases"] if phase in PHASES),
        )
        signatures = tuple(map(str, told["signatures"]))
    except (FileNotFoundError, *DAMAGED):
        return {}
    return {"operators": Operators(**columns), "signatures": signatures, "recorded_step": step}
