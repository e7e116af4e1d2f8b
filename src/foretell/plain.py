"""Records as plain JSON values and back. Input is not trusted: a wrong value raises a ValueError that says where."""

from __future__ import annotations

import base64
import types
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")


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


def from_plain(kind: type[_Record], value: Any, *, where: str = "") -> _Record:
    """Build a record of that class. Missing fields take their defaults; unknown ones are rejected."""
    where = where or kind.__name__
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r:.60} is not an object")
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind) if each.init}  # type: ignore[arg-type]
    unknown = [name for name in value if name not in known]
    if unknown:
        raise ValueError(f"{where} has no {', '.join(unknown)}; it has {', '.join(known)}")
    for name, each in known.items():
        if name not in value and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{where} needs {name}")
    return kind(**{name: _value(hints[name], each, f"{where}.{name}") for name, each in value.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != any(isinstance(each, bool) for each in arguments):
            raise ValueError(f"{where}: {value!r:.60} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is list:
        return list(_tuple((*arguments, ...), value, where))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {value!r:.60} is not an object")
        return {str(name): _value(arguments[1], each, f"{where}.{name}") for name, each in value.items()}
    if is_dataclass(kind):
        return from_plain(kind, value, where=where)  # type: ignore[arg-type]
    return _simple(kind, value, where)


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    problem: ValueError | None = None
    for kind in kinds:
        try:
            return _value(kind, value, where)
        except ValueError as error:
            problem = problem if problem is not None and kind is type(None) else error
    assert problem is not None
    raise problem


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where}: {value!r:.60} is not a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{where}: {value!r:.60} has {len(value)} values instead of {len(kinds)}")
    pairs = zip(kinds, value, strict=True)
    return tuple(_value(kind, each, f"{where}[{number}]") for number, (kind, each) in enumerate(pairs))


def _simple(kind: Any, value: Any, where: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is Any or (kind is type(None) and value is None):
        return value
    if kind is float and is_number:
        return float(value)
    if kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind in (str, int, bool) and type(value) is kind:
        return value
    wanted = {str: "a string", int: "an integer", bool: "true or false", float: "a number", type(None): "null"}
    raise ValueError(f"{where}: {value!r:.60} is not {wanted.get(kind, kind)}")
