"""Parsing and formatting sizes. Inside foretell, sizes are integer bytes everywhere."""

from __future__ import annotations

import re

from .errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": KIB,
    "m": 10**6, "mb": 10**6, "mib": MIB,
    "g": 10**9, "gb": 10**9, "gib": GIB,
    "t": 10**12, "tb": 10**12, "tib": TIB,
}  # fmt: skip


_TOO_LARGE = 1 << 60


def parse_bytes(text: str) -> int:
    """Parse '22GiB', '800 MiB', '1.5GB' or a plain number of bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"not a size: {text!r}. Give a number and a unit, for example 22GiB, 800MiB or 1.5GB.")
    size = float(match[1]) * factor
    if size >= _TOO_LARGE:
        raise UsageError(f"not a size: {text:.40}... is larger than any memory. Give for example 22GiB or 800MiB.")
    return round(size)


def parse_growth(text: str) -> int | float:
    """Parse '200MiB' to bytes, and '5%' to a fraction: an int and a float."""
    match = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%\s*", text)
    if match is not None:
        return float(match[1]) / 100
    try:
        return parse_bytes(text)
    except UsageError:
        raise UsageError(f"not a size or a percentage: {text!r:.60}. Give for example 200MiB or 5%.") from None


def format_bytes(num_bytes: int) -> str:
    """Format with the largest binary unit that keeps the number at one or above: 5.21 GiB, 812 MiB, 512 B."""
    sign = "-" if num_bytes < 0 else ""
    size = abs(num_bytes)
    if size >= GIB:
        return f"{sign}{size / GIB:.2f} GiB"
    if size >= MIB:
        return f"{sign}{size / MIB:.0f} MiB" if size >= 100 * MIB else f"{sign}{size / MIB:.1f} MiB"
    if size >= KIB:
        return f"{sign}{size / KIB:.1f} KiB"
    return f"{sign}{size} B"
