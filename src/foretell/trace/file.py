"""The trace on disk, format `foretell.trace/2`.

A zip with `trace.json` for small data and one little-endian binary member per column for large tables. A foreign,
truncated or newer file raises a `TraceError` that says so.
"""

from __future__ import annotations

import json
import sys
import zipfile
from array import array
from dataclasses import Field, dataclass, fields
from operator import gt
from pathlib import Path
from typing import Any, TypeVar, cast

from foretell import disk
from foretell.errors import TraceError
from foretell.plain import from_plain, parse_json, to_plain
from foretell.protocol import native_log
from foretell.protocol.history import ACTIONS, ORIGIN_NAMES
from foretell.records import CATEGORIES
from foretell.trace.operators import check_signature
from foretell.trace.records import (
    PHASES,
    Captures,
    Collectives,
    Convolutions,
    Copies,
    DriverEvents,
    EventUses,
    GraphLaunches,
    KernelLaunches,
    Labels,
    LibraryCalls,
    MatrixProducts,
    MemoryEvents,
    Memsets,
    Operators,
    Origins,
    RecurrentNets,
    Spans,
    SparseResults,
    Synchronizations,
    Trace,
)
from foretell.units import MIB

SCHEMA = "foretell.trace/2"
"""2: library calls in tables by kind, and origins in one table. In 1, the numbers of calls had no names, and origins
were stack frames with files like `<operator>`."""
_Table = TypeVar(
    "_Table", MemoryEvents, DriverEvents, KernelLaunches, LibraryCalls, Convolutions, MatrixProducts, Collectives,
    RecurrentNets, SparseResults, Labels, Spans, Origins, Copies, Memsets, Synchronizations, EventUses, Operators,
    GraphLaunches, Captures,
)  # fmt: skip
_TABLES = {
    "memory": MemoryEvents, "driver": DriverEvents, "kernels": KernelLaunches, "library": LibraryCalls,
    "convolutions": Convolutions, "products": MatrixProducts, "collectives": Collectives, "recurrent": RecurrentNets,
    "sparse": SparseResults, "labels": Labels, "spans": Spans, "origins": Origins,
    "copies": Copies, "memsets": Memsets, "synchronizations": Synchronizations, "event_uses": EventUses,
    "graph_launches": GraphLaunches, "captures": Captures, "operators": Operators,
}  # fmt: skip
_SINCE_TIME = (
    "copies", "memsets", "synchronizations", "event_uses", "graph_launches", "captures", "operators",
)  # fmt: skip
"""Older files lack these tables."""
_SIZES = {
    "kernels": ("grid_x", "grid_y", "grid_z", "block", "shared_bytes"), "products": ("m", "n", "k", "batch_count"),
    "convolutions": ("x_bytes", "y_bytes", "w_bytes", "multiply_adds"),
    "recurrent": ("num_steps", "batch_size", "input_size", "hidden_size"), "copies": ("bytes",), "memsets": ("bytes",),
}  # fmt: skip
"""Columns that the time of a step is computed from."""
_RANKS = "other_ranks"
"""The field, and the folder in the file, of the traces of other ranks."""
_ADVICE = "Record a new one with `foretell run --trace FILE ...`."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    rows: int
    columns: dict[str, str]
    """Name and type letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    tables: dict[str, _Shape]


def save(trace: Trace, path: Path) -> None:
    """Write the file, for its owner alone: the command line and the paths of the script are in it."""
    with disk.writing(Path(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _write_members(trace, archive)


def load(path: Path) -> Trace:
    """Read and validate a file."""
    path = Path(path)
    start = b""
    try:
        with disk.opened(path) as file:
            start = file.read(1)
            with zipfile.ZipFile(file) as archive:
                _check_sizes(archive, path)
                return _read_members(archive, path)
    except FileNotFoundError:
        raise TraceError(f"no such trace: {path}. Record one with `foretell run --trace FILE ...`.") from None
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder, not a trace.") from None
    except zipfile.BadZipFile as error:
        if start == b"{":
            raise TraceError(f"{path} is JSON, not a trace; an estimate (--json) is not enough. {_ADVICE}") from None
        raise TraceError(f"{path} is not a trace, or is truncated ({error}). {_ADVICE}") from None
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}.") from None
    except TraceError:
        raise
    except Exception as error:
        # Anything else that zipfile, zlib or json raises on a damaged byte: the file is at fault, not the program.
        reason = f"{type(error).__name__}: {error}"
        raise TraceError(f"{path} is a damaged trace ({reason}). {_ADVICE}") from None


def _write_members(trace: Trace, archive: zipfile.ZipFile, folder: str = "") -> None:
    for number, other in enumerate(trace.other_ranks):
        _write_members(other, archive, f"{folder}{_RANKS}/{number}/")
    tables = {}
    for name, table_type in _TABLES.items():
        table = getattr(trace, name)
        columns = {f.name: _typecode(f) for f in fields(table_type)}
        tables[name] = {"rows": len(getattr(table, next(iter(columns)))), "columns": columns}
        for column in columns:
            data = getattr(table, column)
            if sys.byteorder == "big":
                data = array(data.typecode, data)
                data.byteswap()
            archive.writestr(f"{folder}{name}/{column}", data.tobytes())
    small = {f.name: to_plain(getattr(trace, f.name)) for f in fields(trace) if f.name not in {*_TABLES, _RANKS}}
    # Written last: a file without it is truncated.
    document = {"schema": SCHEMA, "tables": tables, "num_other_ranks": len(trace.other_ranks), **small}
    archive.writestr(f"{folder}trace.json", json.dumps(document, separators=(",", ":")))


def _read_members(archive: zipfile.ZipFile, path: Path, folder: str = "") -> Trace:
    if f"{folder}trace.json" not in archive.namelist():
        raise TraceError(f"{path} is a zip file, but not a foretell trace. {_ADVICE}")
    document = parse_json(_member(archive, f"{folder}trace.json"))
    schema = str(document.pop("schema", "none")) if isinstance(document, dict) else "none"
    if schema != SCHEMA:
        family, _, version = schema.rpartition("/")
        is_newer = f"{family}/" == SCHEMA[:-1] and version.isdecimal() and int(version) > int(SCHEMA[-1])
        advice = "Update foretell to read it." if is_newer else _ADVICE
        raise TraceError(f"{path} has the format {schema!r}; this version of foretell reads {SCHEMA!r}. {advice}")
    shapes = from_plain(_Shapes, {"tables": document.pop("tables", {})}).tables

    def load(name: str, kind: type[Any]) -> Any:
        return _load_table(archive, folder, name, kind, shapes[name])

    tables = {
        name: kind() if name in _SINCE_TIME and name not in shapes else load(name, kind)
        for name, kind in _TABLES.items()
    }
    num_other_ranks = int(document.pop("num_other_ranks", 0))
    if num_other_ranks and folder:
        raise ValueError("a rank with ranks of its own")
    others = tuple(_read_members(archive, path, f"{_RANKS}/{number}/") for number in range(num_other_ranks))
    trace = from_plain(Trace, document, given={**tables, _RANKS: others})
    _check_numbers(trace)
    return trace


def _check_numbers(trace: Trace) -> None:
    """Every index must refer to an existing entry, events be in their order, and counters add up."""
    frames = array("q", (number for stack in trace.stacks for number in stack))
    columns: tuple[tuple[str, array[int], int], ...] = (
        ("actions", trace.memory.action, len(ACTIONS)),
        ("stacks", trace.memory.stack, len(trace.stacks)),
        ("frames", frames, len(trace.frames)),
        ("categories", trace.labels.category, len(CATEGORIES)),
        ("names of labels", trace.labels.name, len(trace.owners)),
        ("directions", trace.convolutions.direction, len(native_log.DIRECTIONS)),
        ("sources of workspaces", trace.convolutions.workspace_source, len(native_log.WORKSPACE_SOURCES)),
        ("collectives", trace.collectives.operation, len(native_log.COLLECTIVES)),
        ("routes of copies", trace.copies.route, len(native_log.ROUTES)),
        ("uses of events", trace.event_uses.use, len(native_log.EVENT_USES)),
        ("edges of captures", trace.captures.edge, len(native_log.EDGES)),
        ("what the host waits for", trace.synchronizations.waits_for, len(native_log.WAITS_FOR)),
        ("signatures", trace.operators.signature, len(trace.signatures)),
        ("origins", trace.memory.origin, len(trace.origins.operator)),
        ("callers", trace.origins.caller, len(trace.origins.operator)),
        *(("names of origins", getattr(trace.origins, name), len(trace.owners)) for name in ORIGIN_NAMES),
        ("phases of origins", trace.origins.phase, len(PHASES)),
        ("phases", trace.spans.phase, len(PHASES)),
        ("places of spans", trace.spans.where, len(trace.owners)),
        ("passes of batches", array("q", (batch.loader for batch in trace.batches)), len(trace.loaders or ())),
        ("shapes of batches", array("q", (batch.shape for batch in trace.batches)), len(trace.batch_shapes)),
    )
    if any(caller >= number for number, caller in enumerate(trace.origins.caller)):
        raise ValueError("an origin that comes before its caller")
    if any(parent >= number for number, parent in enumerate(trace.operators.parent)):
        raise ValueError("an operator that comes before its caller")
    for code in trace.kernel_code:
        if not (0 <= code.name < len(trace.names) and 0 <= code.registers < 1 << 16 and code.shared_bytes >= 0):
            raise ValueError(f"machine code that cannot be: {code}")
    for signature in trace.signatures:
        check_signature(signature)
    if min(trace.spans.step, default=0) < 0:
        raise ValueError("a span of a negative step")
    for counters in (*trace.final, *(each for step in trace.steps for each in step.devices)):
        counters.check()
    for table, names in _SIZES.items():
        for name in names:
            if min(getattr(getattr(trace, table), name), default=0) < 0:
                raise ValueError(f"a negative number in {table}/{name}")
    num_events = len(trace.memory.action)
    for what, events in (("labels", trace.labels.event), ("spans", trace.spans.event)):
        if any(map(gt, events, events[1:])) or (events and not 0 <= events[0] <= events[-1] <= num_events):
            raise ValueError(f"{what} that are not in the order of events")
    for what, numbers, count in columns:
        if numbers and not (min(numbers) >= -1 and max(numbers) < count):
            raise ValueError(f"{what}: index {max(numbers)} of {count}")


def _load_table(archive: zipfile.ZipFile, folder: str, name: str, kind: type[_Table], shape: _Shape) -> _Table:
    columns: dict[str, array[int]] = {}
    for f in fields(kind):
        column = array(_typecode(f))
        if shape.columns[f.name] != column.typecode:
            raise ValueError(f"{name}/{f.name} has the type {shape.columns[f.name]!r}")
        column.frombytes(_member(archive, f"{folder}{name}/{f.name}"))
        if sys.byteorder == "big":
            column.byteswap()
        if len(column) != shape.rows:
            raise ValueError(f"{name}/{f.name} has {len(column)} rows, not {shape.rows}")
        columns[f.name] = column
    return kind(**columns)


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Before anything is unpacked: two megabytes can unpack to gigabytes, and JSON needs twenty times its size."""
    for names, free_bytes, ratio in ((set(archive.namelist()), 128 * MIB, 60), (_documents(archive), 32 * MIB, 25)):
        most_bytes = free_bytes + path.stat().st_size * ratio
        if sum(member.file_size for member in archive.infolist() if member.filename in names) > most_bytes:
            raise TraceError(f"{path} would unpack to more than {most_bytes >> 20} MiB, far too much for its size.")


def _documents(archive: zipfile.ZipFile) -> set[str]:
    return {name for name in archive.namelist() if name.rpartition("/")[2] == "trace.json"}


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """No more than the archive says: `ZipFile.read` unpacks first and looks at the size afterwards."""
    with archive.open(name) as file:
        return file.read(archive.getinfo(name).file_size)


def _typecode(column: Field[Any]) -> str:
    return str(cast(Any, column.default_factory)().typecode)
