from __future__ import annotations

import pytest

from foretell.errors import UsageError
from foretell.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("22GiB", 23622320128), ("800 MiB", 838860800), ("1.5GB", 1500000000), ("512", 512), ("1k", 1000), ("1KiB", 1024)],
)
def test_sizes_are_read_with_binary_and_decimal_units(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1.5.1GB", "12 parsecs", "0x10"])
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="22GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (18 << 20, "18.0 MiB"),
        (426 << 20, "426 MiB"),
        (5 << 30, "5.00 GiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_keeps_them_above_one(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_negative_bytes_keep_their_sign() -> None:
    assert format_bytes(-(3 << 30)) == "-3.00 GiB"
