"""The interval of an estimate and the request, as sums of named causes: what of a run is not known, and how much memory
it may be.

What can be read off the run or off public measurements is a rule here. What remains, measured minus estimated, is
calibrated on measured runs: `make calibration` writes it to interval.toml, and docs/accuracy.md says how. The terms of
a `Spread` are a constant, a share of PyTorch's reserved memory, multiples of how far the peak falls, or rises, in
replays with other workspaces of cuDNN (analysis/workspaces.py), and one of how far it moves with batches of other
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..records import CONVOLUTION_KINDS, Cause, Connections, ConvolutionKind, Evidence, Repeat, RepeatKind
from ..units import MIB

CONSTANTS = Path(__file__).with_name("interval.toml")
Side = Literal["below", "above"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """An amount of memory, by what it grows with."""

    mib: float
    of_reserved: float
    of_workspaces: float = 0.0
    of_sums: float = 0.0
    of_alike: float = 0.0
    of_lengths: float = 0.0

    def bytes_for(self, evidence: Evidence, side: Side) -> int:
        is_below = side == "below"
        parts = (
            self.mib * MIB,
            self.of_reserved * evidence.reserved_bytes,
            self.of_workspaces * (evidence.workspaces_less_bytes if is_below else evidence.workspaces_more_bytes),
            self.of_sums * (evidence.sums_less_bytes if is_below else evidence.sums_more_bytes),
            self.of_alike * (evidence.alike_less_bytes if is_below else evidence.alike_more_bytes),
            self.of_lengths * (evidence.shorter_bytes + evidence.longer_bytes),
        )
        return max(0, int(sum(parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What remains of the error once every other cause is taken away."""

    below: Spread
    above: Spread
    request: Spread
    runs: int = 0
    """Measured runs it was calibrated on, in so many groups; no group was judged by constants fitted to it."""
    groups: int = 0
    torch: str = ""
    """The version with which the runs were repeated."""


VARYING = "varying"
"""Runs without convolutions whose batches differ in shape: which blocks are cached depends on the shapes that came
before."""
UNRECORDED = "unrecorded"
"""Of measured runs whose script nobody recorded: `foretell evaluate` alone."""
KINDS = (*CONVOLUTION_KINDS, VARYING, UNRECORDED)
Remainders = Mapping[str, Remainder]
"""By the names in KINDS."""


def kind_of(evidence: Evidence) -> str:
    """Of the remainder of a run."""
    return VARYING if evidence.kind == "plain" and evidence.are_lengths_unknown else evidence.kind


@cache
def remainders() -> Remainders:
    """As shipped."""
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(CONSTANTS.read_text("utf-8"))
    return {kind: _remainder(document[kind]) for kind in KINDS}


def _remainder(table: dict[str, Any]) -> Remainder:
    spreads = {name: Spread(**table[name]) for name in ("below", "above", "request")}
    return Remainder(**spreads, runs=table["runs"], groups=table["groups"], torch=table["torch"])


_LIBRARIES_BYTES = 56 * MIB
"""What libraries load differs between versions: on an A100, 41 MiB and 94 MiB were measured for much the same calls."""


def with_repeats(evidence: Evidence, repeats: tuple[Repeat, ...]) -> Evidence:
    """With what runs of the same job with other choices have shown."""
    known = replace(evidence, repeats=repeats)
    orders = [each.moved_bytes for each in repeats if each.kind == "order"]
    if not orders:
        return known
    return replace(known, shorter_bytes=max(0, -min(orders)), longer_bytes=max(0, *orders))


def _moved(evidence: Evidence, kind: RepeatKind) -> tuple[int, int] | None:
    """How far runs with that choice lie below and above; None if there were none."""
    moved = [each.moved_bytes for each in evidence.repeats if each.kind == kind]
    return (max(0, -min(moved)), max(0, *moved)) if moved else None


def causes_of(evidence: Evidence, calibrated: Remainders | None = None) -> tuple[Cause, ...]:
    """The causes that apply, largest first. `calibrated`: instead of the shipped figures."""
    remainder = (calibrated or remainders())[kind_of(evidence)]
    found = [cause for cause in _causes(evidence, remainder) if cause.below_bytes or cause.request_bytes]
    return tuple(sorted(found, key=lambda cause: -cause.below_bytes - cause.request_bytes))


def _causes(evidence: Evidence, remainder: Remainder) -> Iterator[Cause]:
    yield _context(evidence)
    yield _libraries(evidence)
    earlier, later = _moved(evidence, "events") or (evidence.waiting_bytes, 0)
    yield Cause(
        name="streams",
        below_bytes=earlier,
        above_bytes=later,
        request_bytes=later,
        why="blocks wait for another stream, which may be done earlier",
    )
    fewer, more = _moved(evidence, "values") or (0, 0)
    yield Cause(
        name="values",
        below_bytes=fewer,
        above_bytes=more,
        request_bytes=more,
        why="values that decide sizes are not known: none or all of the elements may count",
    )
    yield Cause(
        name="lengths",
        below_bytes=evidence.shorter_bytes,
        above_bytes=evidence.longer_bytes,
        request_bytes=evidence.longer_bytes,
        why="batches differ in shape, and others than those seen may come (--data-only looks at all)",
    )
    yield Cause(
        name="workspaces",
        below_bytes=evidence.undocumented_bytes // 2,
        above_bytes=evidence.undocumented_bytes,
        request_bytes=evidence.undocumented_bytes,
        why="what recurrent nets, Fourier transforms or solvers need is not documented",
    )
    below, above = _CONNECTION_SHARES[evidence.connections]
    yield Cause(
        name="connections",
        below_bytes=round(below * evidence.connection_bytes),
        above_bytes=round(above * evidence.connection_bytes),
        request_bytes=round(above * evidence.connection_bytes),
        why="what NCCL allocates depends on how the GPUs are connected (--interconnect, --nccl)",
    )
    smaller, larger = _moved(evidence, "workspaces") or (0, 0)
    above = max(larger, remainder.above.bytes_for(evidence, "above"))
    yield Cause(
        name="remainder" if evidence.kind == "plain" else "convolutions",
        below_bytes=max(smaller, remainder.below.bytes_for(evidence, "below")),
        above_bytes=above,
        request_bytes=max(above, remainder.request.bytes_for(evidence, "above")),
        why=_WHYS[evidence.kind],
    )


_CONNECTION_SHARES: dict[Connections, tuple[float, float]] = {
    "assumed": (0.5, 1.0), "described": (0.25, 0.25), "given": (0.0, 0.0)
}  # fmt: skip
"""How much less and more NCCL's buffers may be than by rule. Not calibrated: there are five public figures."""
_WHYS: dict[ConvolutionKind, str] = {
    "plain": "what remained on measured runs: the order of cached blocks",
    "asked": "another cuDNN may choose other plans than the one installed here",
    "ruled": "cuDNN cannot be asked here; its workspaces follow a rule fitted to measured runs",
    "unruled": "cuDNN cannot be asked here, and there is no rule for this card: its workspaces are taken to be zero",
}


def context_shares(*, is_kind_measured: bool) -> tuple[float, float, float]:
    """How far a guess may be too high and too low, and what of it the request adds."""
    return (0.20, 0.25, 0.35) if is_kind_measured else (0.40, 0.40, 0.55)


def _context(evidence: Evidence) -> Cause:
    if evidence.is_context_given:
        return Cause(
            name="context",
            below_bytes=evidence.context_below_bytes,
            above_bytes=evidence.context_above_bytes,
            request_bytes=evidence.context_above_bytes,
            why="the context was fitted to a few measured runs, which differ (--profile)",
        )
    guess = evidence.context_bytes
    below, above, request = context_shares(is_kind_measured=evidence.is_context_kind_measured)
    return Cause(
        name="context",
        below_bytes=int(below * guess),
        above_bytes=int(above * guess),
        request_bytes=int(request * guess),
        why="the memory of an empty process is a guess for this card (--context or --profile replaces it)",
    )


def _libraries(evidence: Evidence) -> Cause:
    is_known = evidence.is_context_given or evidence.are_libraries_measured
    size = 0 if is_known or not evidence.library_bytes else _LIBRARIES_BYTES
    return Cause(
        name="libraries",
        below_bytes=min(size, evidence.library_bytes),
        above_bytes=size,
        request_bytes=size,
        why="what cuBLAS and cuDNN load differs between their versions and cards",
    )
