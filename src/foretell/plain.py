"""Records as plain JSON values and back. Input is not trusted: a wrong value raises a ValueError that says where."""

from __future__ import annotations

import base64
import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")
_INTEGERS = range(-(1 << 63), 1 << 64)
"""What columns of a trace can hold. A JSON number may have any size, and Python computes with all of its digits."""
_BYTES = range(1 << 63)
_MAY_BE_NEGATIVE = frozenset({"saved_bytes"})


def to_plain(value: Any) -> Any:
    """Convert a record to dictionaries, lists, strings, numbers, booleans and None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(name): to_plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Path):
        return str(value)
    assert value is None or isinstance(value, (str, int, float, bool)), f"{type(value)} has no plain form"
    return value


def parse_json(text: str | bytes) -> Any:
    """Like `json.loads`, but raises a ValueError whatever is wrong: nested too deep, not UTF-8, an endless number."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def from_plain(
    kind: type[_Record], value: Any, *, where: str = "", others: Literal["refuse", "ignore"] = "refuse",
    given: Mapping[str, Any] = types.MappingProxyType({}),
) -> _Record:  # fmt: skip
    """Build a record of that class. Missing fields take their defaults; others are refused or ignored, also further
    down. Sizes in bytes are not negative. `given` has fields that are not plain."""
    where = where or kind.__name__
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r:.60} is not an object")
    hints, known = _fields(kind)  # type: ignore[arg-type]
    unknown = [name for name in value if name not in known or name in given]
    if unknown and others == "refuse":
        raise ValueError(f"{where} has no {', '.join(unknown[:5])}; it has {', '.join(known)}")
    values = dict(given)
    for name, is_needed in known.items():
        if name in given:
            continue
        if name in value:
            values[name] = _value(hints[name], value[name], f"{where}.{name}", others)
            if name.endswith("_bytes") and name not in _MAY_BE_NEGATIVE and type(values[name]) is int:
                _check_range(values[name], _BYTES, f"{where}.{name}")
        elif is_needed:
            raise ValueError(f"{where} needs {name}")
    try:
        return kind(**values)
    except AssertionError as error:
        raise ValueError(f"{where}: {error}") from None


@cache
def _fields(kind: type[Any]) -> tuple[dict[str, Any], dict[str, bool]]:
    """The types of the fields, and which of them have no default."""
    known = {
        each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(kind) if each.init
    }
    return get_type_hints(kind), known


def _value(kind: Any, value: Any, where: str, others: Literal["refuse", "ignore"]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where, others)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != any(isinstance(each, bool) for each in arguments):
            raise ValueError(f"{where}: {value!r:.60} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _tuple(arguments, value, where, others)
    if origin is list:
        return list(_tuple((*arguments, ...), value, where, others))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {value!r:.60} is not an object")
        return {str(name): _value(arguments[1], each, f"{where}.{name}", others) for name, each in value.items()}
    if is_dataclass(kind):
        return from_plain(kind, value, where=where, others=others)  # type: ignore[arg-type]
    return _simple(kind, value, where)


def _one_of(kinds: tuple[Any, ...], value: Any, where: str, others: Literal["refuse", "ignore"]) -> Any:
    problem: ValueError | None = None
    for kind in kinds:
        try:
            return _value(kind, value, where, others)
        except ValueError as error:
            problem = problem if problem is not None and kind is type(None) else error
    assert problem is not None
    raise problem


def _tuple(kinds: tuple[Any, ...], value: Any, where: str, others: Literal["refuse", "ignore"]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where}: {value!r:.60} is not a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        if kinds[0] in (str, int) and set(map(type, value)) <= {kinds[0]}:  # a trace has millions
            if kinds[0] is int and value:
                _check_range(min(value), _INTEGERS, where)
                _check_range(max(value), _INTEGERS, where)
            return tuple(value)
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{where}: {value!r:.60} has {len(value)} values instead of {len(kinds)}")
    pairs = zip(kinds, value, strict=True)
    return tuple(_value(kind, each, f"{where}[{number}]", others) for number, (kind, each) in enumerate(pairs))


def _simple(kind: Any, value: Any, where: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is Any or (kind is type(None) and value is None):
        return value
    if kind is float and is_number:
        if isinstance(value, int):
            _check_range(value, _INTEGERS, where)
        elif not math.isfinite(value):
            raise ValueError(f"{where}: {value} is not a finite number")
        return float(value)
    if kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind in (str, int, bool) and type(value) is kind:
        if kind is int:
            _check_range(value, _INTEGERS, where)
        return value
    wanted = {str: "a string", int: "an integer", bool: "true or false", float: "a number", type(None): "null"}
    raise ValueError(f"{where}: {value!r:.60} is not {wanted.get(kind, kind)}")


def _check_range(value: int, allowed: range, where: str) -> None:
    if value not in allowed:
        shown = value if abs(value) < 1 << 200 else f"a number of {value.bit_length()} bits"
        raise ValueError(f"{where}: {shown} is not a number {'of bytes' if allowed is _BYTES else 'of 64 bits'}")
