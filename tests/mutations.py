"""Damaged and hostile variants of a file: of its bytes, of its JSON, of its zip. A seed gives the same every time."""

from __future__ import annotations

import io
import json
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from copy import deepcopy
from typing import Any

HOSTILE = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, -(10**400), 0.5, -0.0, 1e308, -1e308,
    float("nan"), float("inf"), "", "x", "-1", "1e9", "nan", "../../x", "\x1b[2J", "\ud800", "[/]", "</script>",
    "é" * 300, [], {}, [[]], [None], {"": None}, [1, 2, 3, 4, 5], ["a", "b", "c"],
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63), 10**9)
Mutate = Callable[[bytes, random.Random], bytes]


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """One to three changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = chance.choice(_CHANGES)(data, chance)
    return data


def _flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\xff"
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 4, 16))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _drop(data: bytes, chance: random.Random) -> bytes:
    begin, end = _range(data, chance)
    return data[:begin] + data[end:]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    begin, end = _range(data, chance)
    return data[:end] + data[begin:end] * chance.choice((1, 2, 50)) + data[end:]


def _zero(data: bytes, chance: random.Random) -> bytes:
    """As a file system leaves what was not written before a crash."""
    begin, end = _range(data, chance)
    return data[:begin] + bytes(end - begin) + data[end:]


def _insert(data: bytes, chance: random.Random) -> bytes:
    begin, _ = _range(data, chance)
    return data[:begin] + chance.randbytes(chance.choice((1, 8, 100))) + data[begin:]


def _range(data: bytes, chance: random.Random) -> tuple[int, int]:
    begin = chance.randint(0, len(data))
    return begin, min(len(data), begin + chance.choice((1, 4, 64, 1000)))


_CHANGES: tuple[Mutate, ...] = (_flip, _flip, _cut, _drop, _repeat, _zero, _insert)


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """Other types and sizes, missing, unknown and repeated keys, deep nesting; now and then other bytes."""
    if chance.random() < 0.1:
        return mutate_bytes(data, chance)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # mutated before
        return mutate_bytes(data, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        if chance.random() < 0.5:
            _mutate_leaf(document, chance)
        else:
            document = _mutate_value(document, chance)
    text = json.dumps(document)
    if chance.random() < 0.05:
        text = text.replace("null", "[" * 10_000 + "]" * 10_000, 1)
    if chance.random() < 0.05:
        text = text.replace("{", '{"schema": 1, ', 1)  # a key twice
    return text.encode()


def _mutate_leaf(document: Any, chance: random.Random) -> None:
    """Another value for one of those that hold no others; each is as likely, however deep."""
    leaves: list[tuple[Any, Any]] = []
    inner = [document]
    while inner:
        holder = inner.pop()
        if isinstance(holder, (dict, list)):
            for at, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
                inner.append(value)
                if not (isinstance(value, (dict, list)) and value):
                    leaves.append((holder, at))
    if leaves:
        holder, at = chance.choice(leaves)
        holder[at] = _mutate_value(holder[at], chance)


def _mutate_value(value: Any, chance: random.Random) -> Any:
    """The value with one place in it changed; places far down are as likely as those at the top."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        changed = dict(value)
        how = chance.random()
        if how < 0.06:
            del changed[name]
        elif how < 0.1:
            changed[chance.choice(("", "x", f"{name}_"))] = changed.pop(name)
        else:
            changed[name] = _mutate_value(value[name], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        changed_list = list(value)
        how = chance.random()
        if how < 0.05:
            del changed_list[at]
        elif how < 0.1:
            changed_list.insert(chance.randrange(len(value)), value[at])
        elif how < 0.13:
            chance.shuffle(changed_list)
        else:
            changed_list[at] = _mutate_value(value[at], chance)
        return changed_list
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
        return value + chance.choice((-1, 1, 512, -512, 2**20, 2**40))
    return deepcopy(chance.choice(HOSTILE))  # what is put in may be changed in its turn


def mutate_zip(data: bytes, chance: random.Random) -> bytes:
    """Members with other contents, sizes or numbers; missing, repeated, foreign ones; now and then other bytes."""
    if chance.random() < 0.15:
        return mutate_bytes(data, chance)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _mutate_members(members, chance)
    method = chance.choice((zipfile.ZIP_DEFLATED,) * 8 + (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    target = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(target, "w", method) as archive:
        warnings.simplefilter("ignore")  # of a name twice
        for name, content in members:
            archive.writestr(name, content)
    packed = target.getvalue()
    if chance.random() < 0.08:  # the directory at the end says something else than the members have
        at = packed.rindex(b"PK\x01\x02") + chance.choice((8, 10, 16, 20, 24, 42))
        packed = packed[:at] + struct.pack("<I", chance.choice((0, 1, 2**31, 2**32 - 1))) + packed[at + 4 :]
    return packed


def _mutate_members(members: list[tuple[str, bytes]], chance: random.Random) -> None:
    full = [number for number, (_, content) in enumerate(members) if content]
    at = chance.choice(full)
    if chance.random() < 0.4:
        at = next((number for number, (name, _) in enumerate(members) if name == "trace.json"), at)
    name, content = members[at]
    how = chance.random()
    if how < 0.03:
        del members[at]
    elif how < 0.06:
        members.append((name, content))
    elif how < 0.08:
        members.append(("../../x", content))
    elif name == "trace.json":
        members[at] = name, mutate_json(content, chance)
    elif how < 0.2:
        members[at] = name, mutate_bytes(content, chance)
    else:
        members[at] = name, _mutate_column(content, chance)


def _mutate_column(content: bytes, chance: random.Random) -> bytes:
    """Another number in one of the rows, and as many rows."""
    width = chance.choice([width for width in (1, 2, 4, 8) if len(content) % width == 0])
    at = chance.randrange(len(content) // width) * width
    number = chance.choice(NUMBERS) & ((1 << 8 * width) - 1)
    return content[:at] + number.to_bytes(width, "little") + content[at + width :]
