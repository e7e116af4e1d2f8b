"""Results as lines of JSON, written as they arrive: interrupted work resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from foretell.plain import parse_json

_PACKAGE = Path(__file__).parent.parent
_CODE = (".py", ".c", ".h", ".inc", ".toml")


class Store:
    """Results by job key (`Job.key`, or any other) for one state of the code; other states are not comparable."""

    def __init__(self, path: Path, *, state: str) -> None:
        self._path = path
        self._state = state
        self._file: IO[str] | None = None
        self._known = {key: result for key, of_state, result in lines(path) if of_state == state}

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def add(self, key: str, result: Any) -> None:
        """Add a result of plain JSON values. Flushed at once: nothing is lost if the work is interrupted."""
        if self._file is None:
            self._file = self._opened()
        self._file.write(json.dumps({"key": key, "state": self._state, "result": result}) + "\n")
        self._file.flush()
        self._known[key] = result

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _opened(self) -> IO[str]:
        """Open for appending; terminates a half line left by an interrupted run."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_torn = self._path.exists() and not (self._path.read_bytes() or b"\n").endswith(b"\n")
        file = self._path.open("a", encoding="utf-8")
        if is_torn:
            file.write("\n")
        return file


def lines(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Key, state and result of every complete line."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = parse_json(text)
            yield str(line["key"]), str(line["state"]), line["result"]
        except (ValueError, KeyError, TypeError):
            continue


def state_of_code(*others: Path, without: Collection[Path] = ()) -> str:
    """A short hash of everything a result depends on: foretell's own code and tables, and other files or folders."""
    digest = hashlib.sha256()
    for place in (_PACKAGE, *others):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in _CODE and path not in without and "cli" not in path.relative_to(place).parts:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
