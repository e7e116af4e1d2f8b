"""Registers of kernels, read from the machine code in torch's own libraries."""

from __future__ import annotations

import importlib.util
import mmap
from pathlib import Path

import pytest

from foretell.trace import machine_code
from foretell.trace.machine_code import CONTAINER, Place, entries, offset, position, resources

A100, H100, P100 = (8, 0), (9, 0), (6, 0)


@pytest.fixture(scope="module")
def library() -> Path:
    """The smallest of torch's that has kernels, and the place of its first container."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    found = Path(spec.origin).with_name("lib") / "libtorch_cuda_linalg.so"
    if not found.exists():
        pytest.skip("this torch has no kernels")
    return found


@pytest.fixture(scope="module")
def place(library: Path) -> Place:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(CONTAINER)
        while not list(entries(data, at)):
            at = data.find(CONTAINER, at + 4)
        where = offset(data, at)
        assert position(data, where) == at
    return Place(str(library), where)


def kernels_of(place: Place, capability: tuple[int, int] = A100) -> machine_code.Found:
    return machine_code.of_library(Path(place.file), {place.offset}, capability, None)[place.offset]


def test_each_kernel_of_a_container_has_its_registers(place: Place) -> None:
    found = kernels_of(place)
    assert found
    assert all(1 <= registers <= 255 and shared >= 0 for registers, shared in found.values())


def test_only_kernels_that_are_asked_for_are_told(place: Place) -> None:
    name, needs = next(iter(kernels_of(place).items()))
    assert resources([place], {name, "another"}, A100, None) == {name: needs}


def test_a_card_has_the_code_of_its_own_architecture(place: Place) -> None:
    ours, theirs = kernels_of(place), kernels_of(place, H100)
    assert ours.keys() & theirs.keys()
    assert ours != theirs
    assert kernels_of(place, P100) == {}  # too old for this torch


def test_what_is_known_is_kept_for_the_next_run(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = kernels_of(place).keys()
    first = resources([place], names, A100, tmp_path)
    monkeypatch.setattr(machine_code, "_cuobjdump", lambda library: None)
    assert resources([place], names, A100, tmp_path) == first
    assert resources([place], names, A100, None) == {}


def test_a_damaged_cache_is_read_anew(place: Place, tmp_path: Path) -> None:
    names = kernels_of(place).keys()
    first = resources([place], names, A100, tmp_path)
    (kept,) = tmp_path.iterdir()
    for text in ("", "[]", '{"1": {"a": [1]}}', "{" * 100_000):
        kept.write_text(text)
        assert resources([place], names, A100, tmp_path) == first


@pytest.mark.parametrize("content", [None, b"", b"\x7fELF", CONTAINER * 100, bytes(4096)])
def test_a_file_that_is_no_library_has_no_kernels(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "odd.so"
    if content is not None:
        path.write_bytes(content)
    assert resources([Place(str(path), 64), Place(str(path), 1 << 40)], {"kernel"}, A100, None) == {}
