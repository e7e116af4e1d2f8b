"""Writes what is made from the definitions in this package:

python -m foretell.protocol.generate header       src/foretell/virtual/native/core/log_kinds.h
python -m foretell.protocol.generate docs FILE    brings the tables in docs/architecture.md up to date
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator

from . import journal, options
from .native_log import KINDS, NUM_WORDS, Field, Kind

COLUMNS = 120
_KEPT = "\N{NO-BREAK SPACE}"
"""A space at which no line is broken."""

_HEAD = """\
/* The records of the native log. Made by `python -m foretell.protocol.generate header`: change
 * src/foretell/protocol/native_log.py, not this file. */
#ifndef FORETELL_LOG_KINDS_H
#define FORETELL_LOG_KINDS_H

#include <stdint.h>

enum LogKind {
"""
_LOG = """\
};

void log_event(enum LogKind kind, const char *name, const int64_t words[6]);
"""


def header() -> str:
    """C: the numbers of the kinds, and a structure and a function for each kind of record."""
    text = _HEAD + "".join(f"    LOG_{kind.name.upper()} = {kind.number},\n" for kind in KINDS) + _LOG
    choices = {field.name: field.choices for kind in KINDS for field in kind.fields if field.choices}
    for name, words in choices.items():
        text += "\n" + _wrapped(f"enum {{ {', '.join(f'{name}_{word}'.upper() for word in words)} }};", " " * 4) + "\n"
    for kind in KINDS:
        text += "\n" + _function(kind)
    return text + "\n#endif\n"


def documentation(text: str) -> str:
    """The text of docs/architecture.md, with its tables made anew; each is known by its first row."""
    for made in (table(), journal_table(), options_table(), variables_table()):
        begin = text.index(made.partition("\n")[0] + "\n")
        end = text.find("\n\n", begin)
        text = text[:begin] + made + (text[end + 1 :] if end >= 0 else "")
    return text


def journal_table() -> str:
    """Markdown: a row for each kind of line of the journal."""
    rows = ["| kind | when | further keys |", "|---|---|---|"]
    for name, kind in journal.KINDS.items():
        keys = (
            f"`{key_name}`{'?' if key.is_optional else ''}{f' ({key.meaning})' if key.meaning else ''}"
            for key_name, key in kind.keys.items()
        )
        rows.append(f"| `{name}` | {kind.meaning} | {', '.join(keys)} |")
    return "\n".join(rows) + "\n"


def options_table() -> str:
    """Markdown: a row for each option of a capture."""
    rows = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for name, option in options.OPTIONS.items():
        default = "-" if name == "directory" else f"`{json.dumps(option.default)}`"
        rows.append(f"| `{name}` | {option.values} | {default} | {option.meaning} |")
    return "\n".join(rows) + "\n"


def variables_table() -> str:
    """Markdown: a row for each variable that is set for the watched process."""
    rows = ["| variable | set by | meaning |", "|---|---|---|"]
    rows += [f"| `{name}` | `{by}` | {meaning} |" for name, (by, meaning) in options.VARIABLES.items()]
    return "\n".join(rows) + "\n"


def table() -> str:
    """Markdown: a row for each kind of record of the native log."""
    rows = ["| kind | name | a0 … a5 | meaning |", "|---|---|---|---|"]
    rows += [
        f"| {kind.number} `{kind.name}` | {kind.subject} | {_described(kind)} | {kind.meaning} |" for kind in KINDS
    ]
    return "\n".join(rows) + "\n"


def _function(kind: Kind) -> str:
    """The structure names the fields where they are set; the function packs them."""
    comment = _wrapped(f"/* {kind.meaning[0].upper()}{kind.meaning[1:]}. */", " * ") + "\n"
    if not kind.fields:
        return (
            f"{comment}static inline void log_{kind.name}(const char *name) {{\n"
            f"    log_event(LOG_{kind.name.upper()}, name, (const int64_t[6]){{0}});\n}}\n"
        )
    structure = "".join(word.capitalize() for word in kind.name.split("_")) + "Record"
    fields = ", ".join(field.name for field in kind.fields)
    words = ", ".join(_word(kind, word) for word in range(NUM_WORDS))
    return (
        f"{comment}{_wrapped(f'typedef struct {{ int64_t {fields}; }} {structure};', ' ' * 4)}\n"
        f"static inline void log_{kind.name}(const char *name, {structure} r) {{\n"
        f"{_wrapped(f'    const int64_t words[6] = {{{words}}};', ' ' * 8)}\n"
        f"    log_event(LOG_{kind.name.upper()}, name, words);\n}}\n"
    )


def _word(kind: Kind, word: int) -> str:
    packed = (f"r.{field.name}{f' << {field.shift}' if field.shift else ''}" for field in _of(kind, word))
    return " | ".join(packed).replace(" ", _KEPT) or "0"


def _described(kind: Kind) -> str:
    words = [" + ".join(_part(field) for field in _of(kind, word)) or "-" for word in range(NUM_WORDS)]
    while words and words[-1] == "-":
        words.pop()
    return ", ".join(words) or "-"


def _part(field: Field) -> str:
    choices = f" ({', '.join(f'{number} {word}' for number, word in enumerate(field.choices))})"
    return f"{field.name}{f' << {field.shift}' if field.shift else ''}{choices if field.choices else ''}"


def _of(kind: Kind, word: int) -> Iterator[Field]:
    return (field for field in kind.fields if field.word == word)


def _wrapped(text: str, indent: str) -> str:
    lines = textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_KEPT, " ")


def main(words: list[str]) -> None:
    if words == ["header"]:
        sys.stdout.write(header())
        return
    command, path = words
    assert command == "docs", command
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(documentation(text))


if __name__ == "__main__":
    main(sys.argv[1:])
