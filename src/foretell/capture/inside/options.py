"""Turns the JSON of `FORETELL_CAPTURE` into typed options. Every hook has a switch, so that tests can compare."""

from __future__ import annotations

from typing import Any, Literal


class Options:
    """A plain class: `dataclasses` takes 7 ms to import, and every Python process of the script pays for it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.directory: str = given["directory"]
        self.steps: Literal["auto", "all"] | int = given.get("steps", "auto")
        self.skip_init: bool = given.get("skip_init", True)
        self.overlay: bool = given.get("overlay", True)
        self.offline: bool = given.get("offline", True)
        self.history: bool = given.get("history", True)
        self.attribution: bool = given.get("attribution", True)
        """Tell who holds the memory."""
        self.values: bool = given.get("values", True)
        self.assume: Literal["low", "typical", "high"] = given.get("assume", "typical")
        """How many elements a mask of unknown values selects: none, half, all."""
        self.engine: Literal["auto", "virtual", "cpu"] = given.get("engine", "auto")
        """`auto`: the CPU engine where torch has no CUDA."""
        self.execute: bool = given.get("execute", False)
        """The CPU engine computes every value."""
        self.survey: bool = given.get("survey", False)
        self.alternatives: list[str] = given.get("alternatives", [])
        self.phases: bool = given.get("phases", True)
        self.guards: bool = given.get("guards", True)
        """Refuse what cannot be estimated: several ranks, a card torch has no kernels for."""
