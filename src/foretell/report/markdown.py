"""Markdown with strings that others chose: they must not become markup, links, or mentions of people on GitHub."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+")
_PLAIN = re.compile(r"[^`|\\]+")
_MEANS_SOMETHING = re.compile(r"[\\`*_\[\]<|~$]|^[-+=>]|(?<=^\d)[.)]")
_REFERENCE = re.compile(r"[@#]|:(?=//)|\bwww(?=\.)", re.IGNORECASE)


def code(text: str, *, most: int = 80) -> str:
    """As code, in which GitHub finds neither mentions nor references to issues; also for cells of tables."""
    shown = shortened(text, most)
    if not shown:
        return ""
    if _PLAIN.fullmatch(shown):
        return f"`{shown}`"
    return f"<code>{''.join(each if each.isalnum() else f'&#{ord(each)};' for each in shown)}</code>"


def prose(text: str, *, most: int = 300) -> str:
    """As words of a sentence; a zero-width space parts what GitHub would link."""
    shown = _MEANS_SOMETHING.sub(r"\\\g<0>", shortened(text, most).replace("&", "&amp;"))
    return _REFERENCE.sub(r"\g<0>&#8203;", shown)


def shortened(text: str, most: int) -> str:
    """In one line, without control characters; what is too long loses its middle."""
    line = " ".join(_NOT_SHOWN.sub(" ", text).split())
    if len(line) <= most:
        return line
    head = (most - 3) // 2
    return f"{line[:head]}...{line[head + 3 - most :]}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table of finished cells. A heading that starts with `>` stands above numbers."""
    lines = [f"| {' | '.join(each.removeprefix('>') for each in headings)} |"]
    lines.append(f"|{'|'.join('---:' if each.startswith('>') else '---' for each in headings)}|")
    return lines + [f"| {' | '.join(row)} |" for row in rows]
