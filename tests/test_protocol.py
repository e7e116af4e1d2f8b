"""The definitions both sides of a run load, and what is made from them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from foretell.protocol import generate, native_log
from foretell.protocol.native_log import CONVOLUTION, DIRECTIONS, KINDS, LAUNCH, MATRIX_PRODUCT, RECORD, Kind

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "src/foretell/virtual/native"
LIGHT = {"__future__", "struct", "typing"}


def test_the_c_header_is_the_one_made_from_the_definitions() -> None:
    assert (NATIVE / "core/log_kinds.h").read_text() == generate.header(), (
        "python -m foretell.protocol.generate header > src/foretell/virtual/native/core/log_kinds.h"
    )


def test_the_tables_in_the_docs_are_those_made_from_the_definitions() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert generate.documentation(text) == text, "python -m foretell.protocol.generate docs docs/architecture.md"


def test_c_logs_through_the_functions_of_the_header_alone() -> None:
    sources = [path for path in NATIVE.rglob("*.c") if path.name != "log.c"]
    assert sources
    assert [path.name for path in sources if "log_event(" in path.read_text()] == []


def test_numbers_and_names_of_kinds_are_unique_and_the_first_nine_are_as_they_were() -> None:
    assert [kind.number for kind in KINDS] == list(range(1, len(KINDS) + 1))
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert [kind.name for kind in KINDS[:9]] == [
        "allocation", "free", "launch", "library_call", "unimplemented", "unknown_read", "out_of_memory",
        "static_runtime", "workspace",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_comes_back_from_the_record_it_was_packed_into(kind: Kind) -> None:
    values = {field.name: (1 << min(field.bits, 40)) - 1 - number for number, field in enumerate(kind.fields)}
    time_us, number, name, *words = RECORD.unpack(kind.pack(7, 3, **values))
    assert (time_us, number, name) == (7, kind.number, 3)
    assert {field.name: field.of(words[field.word]) for field in kind.fields} == values


def test_fields_of_one_word_lie_beside_each_other() -> None:
    assert LAUNCH.words(block_x=1, block_y=2, block_z=3, device=4, stream=5)[3:] == [
        1 + (2 << 16) + (3 << 32),
        0,
        4 + (5 << 8),
    ]
    assert CONVOLUTION.words(direction=DIRECTIONS.index("data"))[5] == 2 << 8


def test_what_does_not_fit_or_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="input_type is 256, which does not fit into 8 bits"):
        MATRIX_PRODUCT.words(input_type=256)
    with pytest.raises(ValueError, match="matrix_product has no field rows"):
        MATRIX_PRODUCT.words(rows=1)


def test_the_log_is_light_to_import() -> None:
    """Every Python process of a job may load it."""
    tree = ast.parse(Path(native_log.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= LIGHT
