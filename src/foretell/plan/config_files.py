"""One value in the text of a YAML, JSON or TOML file: what it is, and the text with another one in its place."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretell.errors import UsageError
from foretell.plain import parse_json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Path = tuple[str, ...]
FORMATS = (".yaml", ".yml", ".json", ".toml")
_MAX_SHOWN = 20
_TOML_VALUE = re.compile(r"""=\s*(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,#}\]]+)""")


def changed(text: str, file: Path, key: str, value: str) -> str:
    """The text of the file with `value`, as written on a command line, at this key (`data.batch_size`, `layers.0`)."""
    path = tuple(key.split("."))
    value_of(text, file, key)
    if file.suffix == ".json":
        return _changed_json(text, path, _typed(value))
    if file.suffix == ".toml":
        return _changed_toml(text, file, path, _typed(value))
    return _changed_yaml(text, file, path, value)


def value_of(text: str, file: Path, key: str) -> str | int | float | bool | None:
    """The value at this key. Raises `UsageError` if there is none, or if it is a table or a list."""
    leaves: dict[_Path, Any] = dict(_leaves(_parsed(text, file)))
    path = tuple(key.split("."))
    if path in leaves:
        value: str | int | float | bool | None = leaves[path]
        return value
    names = [".".join(each) for each in leaves]
    below = [name for name in names if name.startswith(f"{key}.")]
    if below:
        raise UsageError(f"{file}: {key} is not a single value; it has {_listed(below)}.")
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.75)
    close += [name for name in names if name.split(".")[-1] == path[-1] and name not in close]
    hint = f"Did you mean {' or '.join(close[:3])}? " if close else ""
    raise UsageError(f"{file} has no key {key}. {hint}Its keys: {_listed(names) or 'none'}.")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (", ..." if len(names) > _MAX_SHOWN else "")


def _leaves(document: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """All single values, with the names and numbers that lead to them."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from _leaves(value, (*path, *str(name).split(".")))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from _leaves(value, (*path, str(number)))
    else:
        yield path, document


def _parsed(text: str, file: Path) -> Any:
    try:
        if file.suffix == ".json":
            return parse_json(text)
        if file.suffix == ".toml":
            return tomllib.loads(text)
        return _plain(_composed(text))
    except ValueError as error:  # also a TOMLDecodeError
        raise UsageError(f"{file} is not {file.suffix[1:].upper()}: {error}.") from None


def _typed(value: str) -> str | int | float | bool | None:
    """As JSON and TOML would write it, if it is not a string."""
    try:
        found = parse_json(value)
    except ValueError:
        return value
    return found if isinstance(found, (int, float, bool)) or found is None else value


# --- JSON -------------------------------------------------------------------------------------------------------------


def _changed_json(text: str, path: _Path, value: Any) -> str:
    document = parse_json(text)
    holder, last = _holder(document, path)
    holder[last] = value
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _holder(document: Any, path: _Path) -> tuple[Any, Any]:
    """The table or list that holds the value, and its name or number there. Names may contain dots."""
    if isinstance(document, list):
        number = int(path[0])
        return (document, number) if len(path) == 1 else _holder(document[number], path[1:])
    for length in range(len(path), 0, -1):
        name = ".".join(path[:length])
        if name in document:
            return (document, name) if length == len(path) else _holder(document[name], path[length:])
    raise AssertionError(f"{path} is not in {list(document)}")


# --- TOML -------------------------------------------------------------------------------------------------------------


def _changed_toml(text: str, file: Path, path: _Path, value: Any) -> str:
    """There is no writer in the standard library: each place where a value stands is tried, and the parser says which
    one is that of the key."""
    wanted = tomllib.loads(text)
    holder, last = _holder(wanted, path)
    is_changed = holder[last] != value
    holder[last] = value
    written = json.dumps(value)
    for match in _TOML_VALUE.finditer(text) if is_changed else ():
        begin, end = match.span("value")
        candidate = text[:begin] + written + text[end:]
        try:
            if tomllib.loads(candidate) == wanted:
                return candidate
        except tomllib.TOMLDecodeError:
            continue
    if not is_changed:
        return text
    raise UsageError(f"{file}: cannot change {'.'.join(path)}; write it as a plain value on one line.")


# --- YAML -------------------------------------------------------------------------------------------------------------


def _composed(text: str) -> Any:
    """The nodes of the first document, which know where they are in the text. Tags are not interpreted."""
    try:
        import yaml
    except ImportError:
        raise UsageError("a YAML file needs PyYAML: pip install pyyaml.") from None
    try:
        return next(iter(yaml.compose_all(text, Loader=yaml.SafeLoader)), None)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _plain(node: Any) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return None
    return _typed(node.value) if node.style is None else node.value


def _changed_yaml(text: str, file: Path, path: _Path, value: str) -> str:
    node = _node(_composed(text), path)
    begin, end = node.start_mark.index, node.end_mark.index
    if text[begin:end].startswith(("&", "!")) or node.style in ("|", ">"):
        raise UsageError(f"{file}: cannot change {'.'.join(path)}; write it as a plain value without an anchor or tag.")
    separator = " " if begin == end and text[begin - 1 : begin] == ":" else ""
    return f"{text[:begin]}{separator}{_written_yaml(value)}{text[end:]}"


def _written_yaml(value: str) -> str:
    """Numbers, `true` and `null` as they are; words in quotes, in which any character is itself."""
    return value if not isinstance(_typed(value), str) else json.dumps(value)


def _node(node: Any, path: _Path) -> Any:
    import yaml

    if not path:
        return node
    if isinstance(node, yaml.SequenceNode):
        return _node(node.value[int(path[0])], path[1:])
    named = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    for length in range(len(path), 0, -1):
        if (name := ".".join(path[:length])) in named:
            return _node(named[name], path[length:])
    raise AssertionError(f"{path} is not in {list(named)}")
