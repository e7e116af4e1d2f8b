"""Registry of everything foretell replaces in the user's process: wraps, remembers, lists and undoes.

Hooks that replace the same name stack: each wraps the current value, and undoing goes backwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

_INHERITED: Any = object()
"""Stands for a missing original: the owner inherited the name, or lacked it."""


class Patch:
    """One replaced name."""

    __slots__ = ("_original", "by", "name", "owner", "replacement")

    def __init__(self, owner: Any, name: str, replacement: Any, by: str) -> None:
        self.owner = owner
        self.name = name
        self.by = by
        """The replacing module."""
        # Not getattr: a static or inherited method would not be the same object after undoing.
        self._original = vars(owner).get(name, _INHERITED)
        self.replacement = replacement
        self.redo()

    def redo(self) -> None:
        setattr(self.owner, self.name, self.replacement)

    def undo(self) -> None:
        if self._original is not _INHERITED:
            setattr(self.owner, self.name, self._original)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)

    def __str__(self) -> str:
        return f"{_name_of(self.owner)}.{self.name}"


class Addition:
    """A change other than a replaced name: a callback, a variable, a mode."""

    __slots__ = ("_undo", "_what", "by")

    def __init__(self, what: str, undo: Callable[[], object], by: str) -> None:
        self._what = what
        self._undo = undo
        self.by = by

    def undo(self) -> None:
        self._undo()

    def __str__(self) -> str:
        return self._what


class Patches:
    def __init__(self) -> None:
        self._made: list[Patch | Addition] = []

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> Patch:
        """Replace a name by the result of `wrapper`, called with its current value."""
        return self._remember(Patch(owner, name, wrapper(getattr(owner, name)), _caller()))

    def replace(self, owner: Any, name: str, replacement: Any) -> Patch:
        return self._remember(Patch(owner, name, replacement, _caller()))

    def added(self, what: str, undo: Callable[[], object]) -> None:
        """Register an addition that `undo` removes; calling `undo` twice must be harmless."""
        self._made.append(Addition(what, undo, _caller()))

    def undo(self) -> None:
        while self._made:
            self._made.pop().undo()

    def __iter__(self) -> Iterator[Patch | Addition]:
        return iter(self._made)

    def _remember(self, patch: Patch) -> Patch:
        self._made.append(patch)
        return patch


def _name_of(owner: Any) -> str:
    module, name = getattr(owner, "__module__", None), getattr(owner, "__qualname__", None)
    if isinstance(owner, type) or name is not None:
        return f"{module}.{name}"
    return str(getattr(owner, "__name__", type(owner).__qualname__))


def _caller() -> str:
    """The module that asked for the patch, without the package name."""
    frame = sys._getframe(2)
    return str(frame.f_globals.get("__name__", "")).partition(".")[2]
