"""The options of a capture (`protocol/options.py`), typed. Every hook has a switch, so that tests can compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..protocol.options import complete


class Options:
    """A plain class: importing `dataclasses` takes 7 ms, in every Python process of the script."""

    directory: str
    steps: Literal["auto", "all", "worst"] | int
    whole_loops: Literal["none", "evaluation", "all"]
    skip_init: bool
    isolation: Literal["auto", "kernel", "python", "none"]
    offline: bool
    history: bool
    attribution: bool
    values: bool
    assume: Literal["low", "typical", "high"]
    engine: Literal["auto", "virtual", "cpu"]
    execute: bool
    survey: bool
    describe: bool
    alternatives: Sequence[str]
    interconnect: str | None
    nccl_bytes: int | None
    phases: bool
    time: bool
    verbose: bool
    guards: bool

    def __init__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(complete(given))
