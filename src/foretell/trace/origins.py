"""Collects the origins of allocations, each once, and the names they use."""

from __future__ import annotations

from foretell.protocol.history import ORIGIN_NAMES
from foretell.trace.records import PHASES, Origin, Origins


class Names:
    """Unique names, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str | None) -> int:
        """The number of a name; -1 for None."""
        return -1 if name is None else self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class OriginTable:
    def __init__(self, names: Names) -> None:
        self.rows = Origins()
        self.origins: list[Origin] = []
        """The rows as `Origin` records."""
        self._names = names
        self._numbers: dict[Origin, int] = {}

    def number(self, origin: Origin) -> int:
        """The number of an origin; -1 if it is empty."""
        number = self._numbers.get(origin)
        if number is not None:
            return number
        if origin == Origin():
            return -1
        for column in ORIGIN_NAMES:
            getattr(self.rows, column).append(self._names.number(getattr(origin, column)))
        self.rows.phase.append(-1 if origin.phase is None else PHASES.index(origin.phase))
        self.rows.caller.append(-1 if origin.caller is None else origin.caller)
        self.origins.append(origin)
        self._numbers[origin] = len(self.origins) - 1
        return len(self.origins) - 1

    def at(self, number: int) -> Origin:
        return self.origins[number] if number >= 0 else Origin()
