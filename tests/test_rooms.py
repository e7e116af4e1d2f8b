"""Which package may import which; docs/architecture.md shows the same table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "foretell"
NOUNS = {"errors", "units", "plain", "disk", "masking", "records", "versions", "jobs", "features"}
IN_THE_CHILD = {
    "inside", "engines.python_cuda", "rules", "allocator", "protocol", "namespaces", "errors", "units", "records",
    "versions",
}  # fmt: skip
"""Loaded by path in the user's process, as the package `foretell_child`; so they import one another relatively, and
nothing else of foretell."""
SHOWS_ITSELF = {"records": {"report"}}
"""An `Estimate` shows itself, by functions of `report` that are imported when they are called: never in the child."""
EVERYTHING = {"*"}
MAY_IMPORT = {
    "errors": set(),
    "units": {"errors"},
    "plain": set(),
    "disk": {"errors"},
    "masking": set(),
    "records": {"units"},
    "versions": set(),
    "jobs": {"errors", "plain", "records"},
    "features": {"plain"},
    "protocol": set(),
    "namespaces": set(),
    "gpus": NOUNS,
    "virtual": NOUNS,
    "rules": {"errors", "units", "records", "versions"},
    "allocator": {"errors", "units", "records", "versions", "protocol"},
    "inside": {"versions", "protocol", "namespaces", "rules", "allocator", "engines.python_cuda"},
    "inside.bootstrap": set(),
    "engines": set(),
    "engines.python_cuda": {"inside", "rules", "allocator", "protocol", "versions"},
    "engines.imported": NOUNS | {"protocol", "trace", "allocator", "rules"},
    "formulas": NOUNS | {"rules", "time"},
    "runs": NOUNS | {"virtual", "protocol", "namespaces", "rules"},
    "calibration": NOUNS | {"virtual", "rules", "runs", "api"},
    "trace": NOUNS | {"allocator", "protocol"},
    "time": NOUNS | {"protocol", "trace"},
    "analysis": NOUNS | {"protocol", "trace", "allocator", "rules", "time"},
    "report": NOUNS | {"gpus", "trace", "allocator", "rules"},
    "diff": NOUNS | {"trace", "analysis", "report"},
    "api": NOUNS | {"gpus", "rules", "runs", "trace", "analysis"},
    "repeats": NOUNS | {"rules", "runs", "trace", "analysis", "api"},
    "advice": NOUNS | {"protocol", "runs", "trace", "allocator", "rules", "api"},
    "learn": NOUNS
    | {"gpus", "virtual", "rules", "inside", "formulas", "runs", "time", "api", "evaluation.workloads"},
    "guessing": NOUNS | {"protocol", "gpus", "rules", "formulas", "runs", "api", "learn"},
    "evaluation": NOUNS | {"gpus", "rules", "formulas", "runs", "report", "api", "learn", "time", "trace"},
    "plan": NOUNS
    | {"protocol", "gpus", "rules", "allocator", "runs", "trace", "time", "analysis", "report", "diff", "api"},
    "postmortem": NOUNS | {"gpus", "runs", "api", "advice", "plan"},
    "testing": NOUNS | {"runs", "report", "api", "plan"},
    "evaluation.workloads": set(),
    "cli": EVERYTHING,
    "__init__": NOUNS | {"api", "guessing", "plan", "postmortem"},
    "__main__": {"cli"},
}
ONLY_IN_THE_USERS_PROCESS = {"torch", "transformers"}
SCRIPTS = {"inside", "engines.python_cuda", "evaluation.workloads", "learn", "measure_card.py"}
"""What runs in the process that has torch."""
MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    nested = ".".join(parts[:2])
    return nested if nested in MAY_IMPORT and len(parts) > 2 else parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names of what is imported: relative imports resolved, and names that are imported as strings."""
    package = ("foretell", *path.relative_to(SOURCE).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            # `from foretell import gpus` names a package, `from foretell.records import Gpu` a thing in one.
            for alias in node.names:
                package_name = f"{module}.{alias.name}"
                is_package = module == "foretell" or package_name.removeprefix("foretell.") in MAY_IMPORT
                found.add(package_name if is_package else module)
        elif isinstance(node, ast.Call) and node.args and name_of(node.func) in ("import_module", "__import__"):
            found.add(text_of(node.args[0]).replace("foretell_child.", "foretell."))
    return {name.replace("foretell_child.", "foretell.") for name in found}


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def text_of(argument: ast.expr) -> str:
    """Of a string, also of one that is put together: `foretell_child.inside.{name}`."""
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in parts)


def packages_imported(path: Path) -> set[str]:
    own = package_of(path)
    inside = {name.removeprefix("foretell.") for name in imports(path) if name.startswith("foretell.")}
    inside -= {"__version__"}
    found = {name if name in MAY_IMPORT else ".".join(name.split(".")[:2]) for name in inside}
    return {name if name in MAY_IMPORT else name.split(".")[0] for name in found} - {own}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_imports_only_what_the_table_allows(path: Path) -> None:
    allowed = MAY_IMPORT[package_of(path)] | SHOWS_ITSELF.get(package_of(path), set())
    assert allowed == EVERYTHING or packages_imported(path) <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_is_imported_only_in_the_users_process(path: Path) -> None:
    if package_of(path) in SCRIPTS or path.name in SCRIPTS:
        return
    assert not {name.split(".")[0] for name in imports(path)} & ONLY_IN_THE_USERS_PROCESS


def test_every_package_of_the_table_exists() -> None:
    for package in MAY_IMPORT:
        path = SOURCE.joinpath(*package.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), package


@pytest.mark.parametrize("package", sorted(IN_THE_CHILD))
def test_what_is_loaded_in_the_users_process_imports_only_its_like_and_relatively(package: str) -> None:
    assert not MAY_IMPORT[package] - IN_THE_CHILD
    for path in MODULES:
        if package_of(path) == package and path.name != "fork_server.py":  # a script: it makes the package first
            names = [node.module or "" for node in ast.walk(ast.parse(path.read_text()))
                     if isinstance(node, ast.ImportFrom) and not node.level]  # fmt: skip
            assert not [name for name in names if name.split(".")[0] == "foretell"], path


NOT_DOCUMENTED = {"engines", "__init__", "__main__"}


@pytest.mark.parametrize("package", sorted(set(MAY_IMPORT) - NOT_DOCUMENTED))
def test_the_documentation_shows_what_each_package_may_import(package: str) -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    (row,) = [line for line in table if line.startswith(row_of(package))]
    assert row.endswith(f" | {imports_text(package)} |")


def row_of(package: str) -> str:
    path = SOURCE.joinpath(*package.split("."))
    return f"| `{package.replace('.', '/')}{'/' if path.is_dir() else '.py'}` |"


def imports_text(package: str) -> str:
    """`nouns, `protocol`, `trace``: in the order of the table."""
    allowed = MAY_IMPORT[package]
    if allowed == EVERYTHING:
        return "everything"
    names = ["nouns"] if allowed >= NOUNS else []
    names += [f"`{name}`" for name in MAY_IMPORT if name in allowed - (NOUNS if names else set())]
    return ", ".join(names) or "standard library"
