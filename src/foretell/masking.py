"""Hides secrets in what is kept or sent around: traces, JSON, reports, messages. What is executed is not touched.

Better one word too many than a password in a trace that was sent to somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"

_NAME = (
    r"(?:[\w.-]*[-_.])?"
    r"(?:token|secret|password|passwd|passphrase|pwd|credentials?|auth|(?:api|access|secret|private)?[-_]?key)"
)
_SECRET_NAME = re.compile(rf"[-+~]*{_NAME}", re.IGNORECASE)
_NO_SECRET = re.compile(r"<.*>|\[.*\]|true|false|none", re.IGNORECASE)
"""What options such as `--eos-token` and `--use-auth-token` take."""
_IN_TEXT = tuple(
    (re.compile(pattern), rf"\1{MASK}")
    for pattern in (
        rf"(?i)(\b{_NAME}=)[^\s&;,'\"]+",  # NAME_TOKEN=value, also in a URL
        rf"(?i)([\"']{_NAME}[\"']\s*:\s*[\"'])[^\"']+",  # "api_key": "value"
        r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}",
        r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)",  # https://user:password@host
        r"\b(hf_|gh[pousr]_)(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{16,}",
        r"\b(github_pat_|glpat-|sk-|xox[abprs]-)(?=[\w-]*[0-9A-Z])[\w-]{16,}",
        r"\b(AKIA|ASIA|AIza)[\w-]{16,}",
        r"\b(eyJ)[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # a JSON web token
    )
)


def mask_command(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without the values of `--api-key X`, `--token=X`, `HUB_TOKEN=X`, and what `mask` finds."""
    masked: list[str] = []
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        if is_value and not word.startswith("--") and not _NO_SECRET.fullmatch(word):
            masked.append(MASK)
        elif equals and value and _SECRET_NAME.fullmatch(name) and not _NO_SECRET.fullmatch(value):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask(word))
        is_value = word.startswith("-") and _SECRET_NAME.fullmatch(word) is not None
    return tuple(masked)


def mask(text: str) -> str:
    """Text without what looks like a secret: known kinds of keys, passwords in URLs, `NAME_TOKEN=value`."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text
