"""Reads the binary log of the virtual GPU (`native-<pid>.bin` and `.names`; protocol/native_log.py) into tables."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import mul
from pathlib import Path
from typing import Any

from foretell.protocol import native_log
from foretell.trace.machine_code import Place
from foretell.trace.records import (
    Captures,
    Collectives,
    Convolutions,
    Copies,
    DriverEvents,
    EventUses,
    GraphLaunches,
    KernelLaunches,
    LibraryCalls,
    LibraryTable,
    MatrixProducts,
    Memsets,
    RecurrentNets,
    SparseResults,
    Synchronizations,
    named,
)

_CALLS: Mapping[str, tuple[native_log.Kind, type[Any]]] = {
    "convolutions": (native_log.CONVOLUTION, Convolutions),
    "products": (native_log.MATRIX_PRODUCT, MatrixProducts),
    "collectives": (native_log.COLLECTIVE, Collectives),
    "recurrent": (native_log.RECURRENT, RecurrentNets),
    "sparse": (native_log.SPARSE, SparseResults),
    "copies": (native_log.COPY, Copies),
    "memsets": (native_log.MEMSET, Memsets),
    "synchronizations": (native_log.SYNCHRONIZATION, Synchronizations),
    "event_uses": (native_log.EVENT_USE, EventUses),
    "graph_launches": (native_log.GRAPH_LAUNCH, GraphLaunches),
    "captures": (native_log.CAPTURE, Captures),
}
"""Tables of a trace with a row for each record of one kind, and a column for each of its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLog:
    names: tuple[str, ...] = ()
    driver: DriverEvents = field(default_factory=DriverEvents)
    kernels: KernelLaunches = field(default_factory=KernelLaunches)
    library: LibraryCalls = field(default_factory=LibraryCalls)
    calls: Mapping[str, Any] = field(default_factory=dict)
    """Other tables of a trace, by their names in it."""
    code: tuple[Place, ...] = ()
    """Containers of machine code from which kernels were launched."""
    unimplemented: tuple[str, ...] = ()
    static_runtimes: tuple[str, ...] = ()
    refused_addresses: tuple[int, ...] = ()
    """Bytes for which the host had no address space."""
    num_unknown_reads: int = 0
    workspaces: tuple[tuple[int, int, int, int], ...] = ()
    """Workspaces passed to a library: time_us, address, bytes, device."""
    cards: Mapping[int, int] = field(default_factory=dict)
    """The number in the machine of each device that was used."""

    def card_of(self, device: int) -> int:
        """Without a record (the CPU engine has no driver), the number of the device."""
        return self.cards.get(device, device)

    def library_functions(self) -> set[str]:
        others = (table for table in self.calls.values() if isinstance(table, LibraryTable))
        return named(self.names, [self.library, *others])


def read_native(directory: Path, pid: int) -> NativeLog:
    try:
        raw = (directory / f"native-{pid}.bin").read_bytes()
    except FileNotFoundError:
        return NativeLog()
    names_path = directory / f"native-{pid}.names"
    names = tuple(names_path.read_text(errors="replace").splitlines()) if names_path.exists() else ()
    log = _Records(raw, names)
    allocated = log.rows(native_log.ALLOCATION)
    return NativeLog(
        names=log.names,
        driver=_driver_events(log),
        kernels=_kernel_launches(log),
        library=_library_calls(log),
        calls={name: log.table(kind, table) for name, (kind, table) in _CALLS.items()},
        code=tuple(map(Place, log.named(native_log.CODE), log.column(0, log.rows(native_log.CODE)))),
        unimplemented=tuple(log.named(native_log.UNIMPLEMENTED)),
        static_runtimes=tuple(log.named(native_log.STATIC_RUNTIME)),
        refused_addresses=tuple(log.column(0, log.rows(native_log.NO_ADDRESS_SPACE))),
        num_unknown_reads=sum(log.rows(native_log.UNKNOWN_READ)),
        workspaces=tuple(compress(zip(log.time_us, *log.arguments[:3], strict=True), log.rows(native_log.WORKSPACE))),
        cards=dict(zip(log.column(2, allocated), log.column(4, allocated), strict=True)),
    )


class _Records:
    """The records as columns. Rows are chosen by a list with a boolean for each record; an empty one: none."""

    def __init__(self, raw: bytes, names: tuple[str, ...]) -> None:
        raw = raw[: len(raw) // native_log.RECORD.size * native_log.RECORD.size]
        words, halves = array("q"), array("I")
        words.frombytes(raw)
        halves.frombytes(raw)
        if sys.byteorder == "big":
            words.byteswap()
            halves.byteswap()
        self.kinds, self.name, self.names = halves[2::16], halves[3::16], names
        if self.name and max(self.name) >= len(names):  # the end of the list was not written any more
            self.name = array("I", (min(number, len(names)) for number in self.name))
            self.names += ("(unknown)",)
        self.time_us = words[0::8]
        self.arguments = [words[2 + number :: 8] for number in range(6)]
        self._present = set(self.kinds)

    def rows(self, *wanted: native_log.Kind) -> list[bool]:
        numbers = self._present & {kind.number for kind in wanted}
        return [kind in numbers for kind in self.kinds] if numbers else []

    def column(self, argument: int, rows: list[bool]) -> Iterable[int]:
        return compress(self.arguments[argument], rows)

    def heads(self, rows: list[bool]) -> dict[str, array[int]]:
        """The columns that every table has."""
        return {"time_us": array("q", compress(self.time_us, rows)), "name": array("I", compress(self.name, rows))}

    def named(self, kind: native_log.Kind) -> Iterable[str]:
        return (self.names[number] for number in compress(self.name, self.rows(kind)))

    def table(self, kind: native_log.Kind, table: type[Any]) -> Any:
        """A column for each field of the kind."""
        rows = self.rows(kind)
        columns, empty = self.heads(rows), table()
        for part in kind.fields:
            whole = self.column(part.word, rows)
            mask = (1 << part.bits) - 1
            values = whole if part.bits == 64 else (word >> part.shift & mask for word in whole)
            columns[part.name] = _low_bits(getattr(empty, part.name).typecode, values)
        return table(**columns)


def _driver_events(log: _Records) -> DriverEvents:
    moved = log.rows(native_log.ALLOCATION, native_log.FREE)
    return DriverEvents(
        **log.heads(moved),
        is_free=array("B", (kind == native_log.FREE.number for kind in compress(log.kinds, moved))),
        address=_low_bits("Q", log.column(0, moved)),
        size=array("q", log.column(1, moved)),
        device=array("q", log.column(2, moved)),
        in_use=array("q", log.column(3, moved)),
    )


def _kernel_launches(log: _Records) -> KernelLaunches:
    launched = log.rows(native_log.LAUNCH)
    names = ("grid_x", "grid_y", "grid_z", "block", "shared_bytes", "place")
    columns = {name: array("q", log.column(argument, launched)) for argument, name in enumerate(names)}
    return KernelLaunches(**log.heads(launched), **columns)


def _library_calls(log: _Records) -> LibraryCalls:
    called = log.rows(native_log.LIBRARY_CALL, native_log.LIBRARY_LOADED, native_log.GRAPH_LAUNCH)
    has_workspace = (kind == native_log.LIBRARY_CALL.number for kind in compress(log.kinds, called))
    return LibraryCalls(
        **log.heads(called),
        workspace_bytes=array("q", map(mul, log.column(0, called), has_workspace)),
        device=_low_bits("B", log.column(5, called)),
    )


def _low_bits(letter: str, values: Iterable[int]) -> array[int]:
    """Of each word: a damaged record may have more."""
    mask = (1 << 8 * array(letter).itemsize) - 1
    return array(letter, values if letter == "q" else (value & mask for value in values))
