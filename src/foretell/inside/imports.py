"""Calls back when a module has finished importing, without importing anything early.

A finder at the head of `sys.meta_path` answers only for the watched names: it asks the other finders for the spec and
makes its loader report when the module body has run. The loader's type is unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .patches import Patches

Callback = Callable[[Any], object]


class ImportWatch:
    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._beginnings: dict[str, Callable[[], None]] = {}
        self._on_failure = on_failure
        self._searching: set[str] = set()

    def install(self, patches: Patches) -> None:
        sys.meta_path.insert(0, self)
        patches.added("sys.meta_path[0]", lambda: sys.meta_path.remove(self))

    def when_imported(self, name: str, callback: Callback, *, begins: Callable[[], None] | None = None) -> None:
        """Call `callback(module)` once `name` is imported (at once if it already is), and `begins()` when the import
        starts."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self._call(name, callback, module)
        else:
            self._callbacks.setdefault(name, []).append(callback)
            if begins is not None:
                self._beginnings[name] = begins

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._callbacks or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = _first_spec(self, name, path, target)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            self._announce_end_of(spec.loader, name)
        return spec

    def _announce_end_of(self, loader: Any, name: str) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._beginnings.pop(name, lambda: None)()
            original(module)
            for callback in self._callbacks.pop(name, []):
                self._call(name, callback, module)

        try:
            loader.exec_module = exec_module
        except AttributeError as error:  # a loader without a __dict__ (built-in or frozen); no watched module has one
            self._on_failure(name, error)

    def _call(self, name: str, callback: Callback, module: ModuleType) -> None:
        try:
            callback(module)
        except Exception as error:  # the user's import must succeed even if foretell fails
            self._on_failure(name, error)


def _first_spec(
    watch: ImportWatch, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        if finder is not watch and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None
