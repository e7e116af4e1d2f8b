"""Differences between versions of torch: one parser, one table, and the documentation shows that table."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.allocator import AllocatorSettings
from foretell.versions import DIFFERENCES, NEWEST_TORCH, OLDEST_TORCH, Difference, as_table, parse_version

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.6", (2, 6)), ("2.15.0a0+git1234", (2, 15)), ("2.6.0+cu124", (2, 6)), ("unknown", None), ("", None)],
)
def test_a_version_is_its_first_two_numbers(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


def test_a_difference_holds_from_its_version_on_and_where_no_version_is_known() -> None:
    difference = Difference(since=(2, 9), what="", before="")
    assert [difference.holds_in(version) for version in ((2, 8), (2, 9), (2, 15), (3, 0), None)] == [
        False, True, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seen_before", "seen_since", "is_guessed"),
    [(("2.8",), ("2.9",), False), (("2.6",), ("2.15",), True), (("2.8",), ("2.10",), True), ((), ("2.9",), True)],
)
def test_a_version_is_guessed_unless_both_sides_of_it_were_looked_at(
    seen_before: tuple[str, ...], seen_since: tuple[str, ...], is_guessed: bool
) -> None:
    difference = Difference(since=(2, 9), what="", before="", seen_before=seen_before, seen_since=seen_since)
    assert difference.is_guessed == is_guessed


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_lies_between_the_supported_versions(name: str) -> None:
    difference = DIFFERENCES[name]
    assert OLDEST_TORCH < difference.since <= NEWEST_TORCH
    looked_at = [parse_version(text) for text in (*difference.seen_before, *difference.seen_since)]
    assert [difference.holds_in(version) for version in looked_at] == [
        *[False] * len(difference.seen_before),
        *[True] * len(difference.seen_since),
    ]


def test_the_documentation_shows_the_table() -> None:
    assert as_table() in (ROOT / "docs" / "torch-versions.md").read_text()


def test_the_allocator_follows_the_table() -> None:
    old, new = (AllocatorSettings.parse("", version) for version in ("2.8.1", "2.9.0+cu128"))
    assert (old.prefers_older_segments, new.prefers_older_segments) == (False, True)
    assert (old.is_private_like_capture, new.is_private_like_capture) == (True, False)
