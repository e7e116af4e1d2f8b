"""The trace on disk, format `foretell.trace/2`.

A zip with `trace.json` for small data and one little-endian binary member per column for large tables. A foreign,
truncated or newer file raises a `TraceError` that says so.
"""

from __future__ import annotations

import json
import sys
import zipfile
from array import array
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from foretell import disk
from foretell.allocator import AllocatorSettings
from foretell.errors import TraceError
from foretell.plain import from_plain
from foretell.protocol import native_log
from foretell.protocol.history import ACTIONS, ORIGIN_NAMES
from foretell.records import CATEGORIES, Gpu, LibraryBytes, Need, OutOfMemory
from foretell.trace.records import (
    PHASES,
    Collectives,
    Convolutions,
    Counted,
    DeviceMemory,
    DriverEvents,
    Keeper,
    KernelLaunches,
    Labels,
    LibraryCalls,
    MatrixProducts,
    MemoryEvents,
    MissingFunction,
    OomMark,
    Origins,
    RecurrentNets,
    ScriptException,
    Spans,
    SparseResults,
    StepMark,
    Trace,
    Unsupported,
)

SCHEMA = "foretell.trace/2"
"""2: library calls in tables by kind, and origins in one table. In 1, the numbers of calls had no names, and origins
were stack frames with files like `<operator>`."""
_Table = TypeVar(
    "_Table", MemoryEvents, DriverEvents, KernelLaunches, LibraryCalls, Convolutions, MatrixProducts, Collectives,
    RecurrentNets, SparseResults, Labels, Spans, Origins,
)  # fmt: skip
_TABLES = {
    "memory": MemoryEvents, "driver": DriverEvents, "kernels": KernelLaunches, "library": LibraryCalls,
    "convolutions": Convolutions, "products": MatrixProducts, "collectives": Collectives, "recurrent": RecurrentNets,
    "sparse": SparseResults, "labels": Labels, "spans": Spans, "origins": Origins,
}  # fmt: skip
_ADVICE = "Record a new one with `foretell run --trace FILE ...`."


def save(trace: Trace, path: Path) -> None:
    """Write the file, for its owner alone: the command line and the paths of the script are in it."""
    with disk.writing(Path(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _write_members(trace, archive)


def load(path: Path) -> Trace:
    """Read and validate a file."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_members(archive, path)
    except FileNotFoundError:
        raise TraceError(f"no such trace: {path}. Record one with `foretell run --trace FILE ...`.") from None
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder, not a trace.") from None
    except zipfile.BadZipFile as error:
        if path.read_bytes()[:1] == b"{":
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


def _write_members(trace: Trace, archive: zipfile.ZipFile) -> None:
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
            archive.writestr(f"{name}/{column}", data.tobytes())
    small = {f.name: _plain(getattr(trace, f.name)) for f in fields(trace) if f.name not in _TABLES}
    # Written last: a file without it is truncated.
    archive.writestr("trace.json", json.dumps({"schema": SCHEMA, "tables": tables, **small}, separators=(",", ":")))


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _read_members(archive: zipfile.ZipFile, path: Path) -> Trace:
    if "trace.json" not in archive.namelist():
        raise TraceError(f"{path} is a zip file, but not a foretell trace. {_ADVICE}")
    document = json.loads(archive.read("trace.json"))
    schema = str(document.pop("schema", "none")) if isinstance(document, dict) else "none"
    if schema != SCHEMA:
        family, _, version = schema.rpartition("/")
        is_newer = f"{family}/" == SCHEMA[:-1] and version.isdigit() and int(version) > int(SCHEMA[-1])
        advice = "Update foretell to read it." if is_newer else _ADVICE
        raise TraceError(f"{path} has the format {schema!r}; this version of foretell reads {SCHEMA!r}. {advice}")
    tables = document.pop("tables")
    loaded = {name: _load_table(archive, name, kind, tables[name]) for name, kind in _TABLES.items()}
    trace = _from_plain(document, loaded)
    _check_numbers(trace)
    return trace


def _check_numbers(trace: Trace) -> None:
    """Every index must refer to an existing entry."""
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
        ("origins", trace.memory.origin, len(trace.origins.operator)),
        ("callers", trace.origins.caller, len(trace.origins.operator)),
        *(("names of origins", getattr(trace.origins, name), len(trace.owners)) for name in ORIGIN_NAMES),
        ("phases of origins", trace.origins.phase, len(PHASES)),
        ("phases", trace.spans.phase, len(PHASES)),
        ("places of spans", trace.spans.where, len(trace.owners)),
    )
    if any(caller >= number for number, caller in enumerate(trace.origins.caller)):
        raise ValueError("an origin that comes before its caller")
    for what, numbers, count in columns:
        if numbers and not (min(numbers) >= -1 and max(numbers) < count):
            raise ValueError(f"{what}: index {max(numbers)} of {count}")


def _load_table(archive: zipfile.ZipFile, name: str, kind: type[_Table], described: dict[str, Any]) -> _Table:
    columns: dict[str, array[int]] = {}
    for f in fields(kind):
        column = array(_typecode(f))
        if described["columns"][f.name] != column.typecode:
            raise ValueError(f"{name}/{f.name} has the type {described['columns'][f.name]!r}")
        column.frombytes(archive.read(f"{name}/{f.name}"))
        if sys.byteorder == "big":
            column.byteswap()
        if len(column) != described["rows"]:
            raise ValueError(f"{name}/{f.name} has {len(column)} rows, not {described['rows']}")
        columns[f.name] = column
    return kind(**columns)


def _from_plain(document: dict[str, Any], tables: dict[str, Any]) -> Trace:
    def records(name: str, kind: type[Any]) -> tuple[Any, ...]:
        return tuple(kind(**item) for item in document.pop(name))

    gpu = document.pop("gpu")
    gpu["compute_capability"] = tuple(gpu["compute_capability"])
    allocator = document.pop("allocator")
    allocator["power2_divisions"] = tuple(allocator["power2_divisions"])
    exception = document.pop("exception")
    steps = tuple(
        StepMark(
            index=item["index"], time_us=item["time_us"], devices=tuple(DeviceMemory(**d) for d in item["devices"])
        )
        for item in document.pop("steps")
    )
    made = {
        "gpu": Gpu(**gpu),
        "libraries": LibraryBytes(**document.pop("libraries")),
        "allocator": AllocatorSettings(**allocator),
        "need": from_plain(Need, need) if (need := document.pop("need", None)) is not None else None,
        "exception": ScriptException(**exception) if exception is not None else None,
        "steps": steps,
        "final": records("final", DeviceMemory),
        "ooms": tuple(OomMark(time_us=m["time_us"], oom=OutOfMemory(**m["oom"])) for m in document.pop("ooms")),
        "unknown_reads": records("unknown_reads", Counted),
        "unimplemented": records("unimplemented", MissingFunction),
        "unsupported": records("unsupported", Unsupported),
        "keepers": tuple(Keeper(**item) for item in document.pop("keepers", ())),
        "frames": tuple((str(file), int(line), str(function)) for file, line, function in document.pop("frames")),
        "stacks": tuple(tuple(stack) for stack in document.pop("stacks")),
    }
    rest = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    trace = cast(Any, Trace)(**made, **rest, **tables)
    return cast(Trace, trace)


def _typecode(column: Field[Any]) -> str:
    return str(cast(Any, column.default_factory)().typecode)
