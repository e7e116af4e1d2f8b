"""Registers and shared memory of kernels, from the machine code in the libraries that they were launched from.

A library has containers of code (`fatbin`), each with the same kernels for several architectures, compressed or not.
The native log says which containers a job used. Their code for the job's card is given to cuobjdump, which comes with
Triton and so with torch, and takes a tenth of a second for a training script. What it said is kept for later runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import re
import shutil
import struct
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from foretell import disk
from foretell.errors import TraceError

CONTAINER = b"\x50\xed\x55\xba"
CUBIN = 2
_CUOBJDUMP = "triton/backends/nvidia/bin/cuobjdump"
_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) .*?SHARED:(\d+)")
_NEXT_ENTRY = "Fatbin elf code:"
_LONGEST_SECONDS = 60
_LOADED = 1
"""PT_LOAD of ELF."""

Data = bytes | mmap.mmap
Found = dict[str, tuple[int, int]]
"""Registers of a thread and static shared memory of a block, by the kernel's name."""


class Place(NamedTuple):
    """Of a container."""

    file: str
    offset: int
    """From where the file begins in memory."""


class Entry(NamedTuple):
    """The kernels of a container for one architecture."""

    kind: int
    architecture: int
    """`86`."""
    begin: int
    end: int
    num_bytes: int
    """Not compressed."""


def resources(
    places: Iterable[Place], names: Collection[str], capability: tuple[int, int], cache: Path | None
) -> Found:
    """Of the kernels with these names; none of a file that has changed, or if there is no cuobjdump."""
    offsets: dict[str, set[int]] = defaultdict(set)
    for place in places:
        offsets[place.file].add(place.offset)
    found: Found = {}
    for file, own in offsets.items():
        with contextlib.suppress(OSError, ValueError, struct.error, subprocess.SubprocessError, TraceError):
            for kernels in of_library(Path(file), own, capability, cache).values():
                found.update((name, kernels[name]) for name in kernels.keys() & names)
    return found


def of_library(
    path: Path, offsets: Collection[int], capability: tuple[int, int], cache: Path | None
) -> dict[int, Found]:
    """By offset."""
    kept = cache / f"{_identity(path, capability)}.json" if cache is not None else None
    known = _read_kept(kept) if kept is not None else {}
    missing = sorted(set(offsets) - known.keys())
    tool = _cuobjdump(path) if missing else None
    if tool is None:
        return known
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        code = {offset: _code_for(data, position(data, offset), capability) for offset in missing}
    known |= _ask(tool, code)
    if kept is not None:
        disk.write(kept, json.dumps(known, separators=(",", ":")))
    return known


def _identity(path: Path, capability: tuple[int, int]) -> str:
    status = path.stat()
    text = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{capability}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _read_kept(path: Path) -> dict[int, Found]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return {
            int(offset): {str(name): (int(registers), int(shared)) for name, (registers, shared) in kernels.items()}
            for offset, kernels in told.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):  # not there, or cut short
        return {}


def _cuobjdump(library: Path) -> Path | None:
    """That of the Triton beside this library's torch, or any."""
    beside = next((folder / _CUOBJDUMP for folder in library.parents if (folder / _CUOBJDUMP).is_file()), None)
    anywhere = shutil.which("cuobjdump") if beside is None else None
    return Path(anywhere) if anywhere is not None else beside


def _ask(tool: Path, code: dict[int, list[bytes]]) -> dict[int, Found]:
    """One call for all: a container of what all of them have for the card."""
    body = b"".join(part for parts in code.values() for part in parts)
    if not body:
        return {offset: {} for offset in code}
    with tempfile.NamedTemporaryFile(suffix=".fatbin") as file:
        file.write(CONTAINER + struct.pack("<HHQ", 1, 16, len(body)) + body)
        file.flush()
        told = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=_LONGEST_SECONDS
        ).stdout
    answers = iter(told.split(_NEXT_ENTRY)[1:])
    found: dict[int, Found] = {}
    for offset, parts in code.items():
        texts = [next(answers, None) for _ in parts]
        if None in texts:
            raise ValueError(f"cuobjdump was given more code than it told about: {len(code)} containers")
        matches = [match.groups() for text in texts for match in _FUNCTION.finditer(text or "")]
        found[offset] = {name: (int(registers), int(shared)) for name, registers, shared in matches}
    return found


def _code_for(data: Data, at: int, capability: tuple[int, int]) -> list[bytes]:
    """The entries that the driver takes: of the highest architecture that the card can run, in its major version."""
    major, minor = capability
    usable = [
        each for each in entries(data, at)
        if each.kind == CUBIN and each.architecture // 10 == major and each.architecture % 10 <= minor
    ]  # fmt: skip
    highest = max((each.architecture for each in usable), default=0)
    return [data[each.begin : each.end] for each in usable if each.architecture == highest]


def entries(data: Data, at: int) -> Iterator[Entry]:
    """Of the container at this position; none if there is no container."""
    if data[at : at + 4] != CONTAINER or struct.unpack_from("<HH", data, at + 4) != (1, 16):
        return
    (length,) = struct.unpack_from("<Q", data, at + 8)
    entry, end = at + 16, min(at + 16 + length, len(data))
    while entry + 64 <= end:
        kind, _, header, payload = struct.unpack_from("<HHIQ", data, entry)
        (architecture,) = struct.unpack_from("<I", data, entry + 28)
        (uncompressed,) = struct.unpack_from("<Q", data, entry + 56)
        if header < 64:
            break
        yield Entry(kind, architecture, entry, entry + header + payload, uncompressed or payload)
        entry += header + payload


def position(data: Data, offset: int) -> int:
    """In the file, of an offset in memory."""
    for begin, address, length in _loaded(data):
        if address <= offset < address + length:
            return begin + offset - address
    raise ValueError(f"no part of the file is loaded at {offset}")


def offset(data: Data, position: int) -> int:
    """In memory, of a position in the file."""
    for begin, address, length in _loaded(data):
        if begin <= position < begin + length:
            return address + position - begin
    raise ValueError(f"position {position} of the file is not loaded")


def _loaded(data: Data) -> Iterator[tuple[int, int, int]]:
    """The parts of an ELF file that are loaded: position, address, length."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for at in range(table, table + size * count, size):
        kind, _, begin, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == _LOADED:
            yield begin, address, length
