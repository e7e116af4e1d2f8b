"""Holds the table of docs/architecture.md: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "foretell"
NOUNS = {"errors", "units", "records"}
EVERYTHING = {"*"}
MAY_IMPORT = {
    "errors": set(),
    "units": {"errors"},
    "records": set(),
    "gpus": NOUNS,
    "virtual": NOUNS,
    "capture": NOUNS | {"virtual"},
    "capture.inside": set(),
    "capture.bootstrap": set(),
    "calibration": NOUNS | {"virtual"},
    "trace": NOUNS,
    "replay": NOUNS | {"trace"},
    "overhead": NOUNS,
    "allocator": NOUNS | {"trace"},
    "cpu": NOUNS | {"trace", "allocator", "overhead"},
    "leaks": NOUNS,
    "lifetimes": NOUNS | {"trace", "replay"},
    "verdict": NOUNS | {"trace", "replay", "lifetimes", "leaks", "overhead"},
    "report": NOUNS | {"trace", "replay"},
    "diff": NOUNS | {"trace", "verdict", "report"},
    "api": NOUNS | {"gpus", "calibration", "capture", "trace", "overhead", "verdict"},
    "advice": NOUNS | {"calibration", "capture", "trace", "allocator", "api"},
    "evaluation": NOUNS | {"gpus", "capture", "api"},
    "evaluation.workloads": set(),
    "cli": EVERYTHING,
    "__init__": NOUNS | {"api"},
    "__main__": {"cli"},
}
ONLY_IN_THE_USERS_PROCESS = {"torch", "transformers"}
SCRIPTS = {"capture.inside", "evaluation.workloads", "measure_card.py"}
"""What runs in the process that has torch."""
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    nested = ".".join(parts[:2])
    return nested if nested in MAY_IMPORT and len(parts) > 2 else parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names of what is imported, relative imports resolved."""
    package = ("foretell", *path.relative_to(SOURCE).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            # `from foretell import gpus` names a room, `from foretell.records import Gpu` a thing in one.
            found |= {f"foretell.{alias.name}" for alias in node.names} if module == "foretell" else {module}
    return found


def rooms_imported(path: Path) -> set[str]:
    own = room_of(path)
    inside = {name.removeprefix("foretell.") for name in imports(path) if name.startswith("foretell.")}
    inside -= {"__version__"}
    rooms = {name if name in MAY_IMPORT else ".".join(name.split(".")[:2]) for name in inside}
    rooms = {room if room in MAY_IMPORT else room.split(".")[0] for room in rooms}
    return rooms - {own}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_the_table_allows(path: Path) -> None:
    allowed = MAY_IMPORT[room_of(path)]
    assert allowed == EVERYTHING or rooms_imported(path) <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_is_imported_only_in_the_users_process(path: Path) -> None:
    if room_of(path) in SCRIPTS or path.name in SCRIPTS:
        return
    assert not {name.split(".")[0] for name in imports(path)} & ONLY_IN_THE_USERS_PROCESS


def test_every_room_of_the_table_exists() -> None:
    for room in MAY_IMPORT:
        path = SOURCE.joinpath(*room.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), room
