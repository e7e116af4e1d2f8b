"""How far the peak moves in replays with other workspaces of cuDNN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from foretell.allocator import AllocatorSettings
from foretell.analysis.workspaces import PARTIAL_SUMS, workspace_spreads
from foretell.protocol.history import ACTIONS
from foretell.protocol.native_log import DIRECTIONS
from foretell.trace import Convolutions, MemoryEvents, Trace
from foretell.units import MIB


def trace_of(direction: str, *, cached: int, workspace: int, weights: int) -> Trace:
    """A block is freed; then a convolution takes its workspace, which may fit into that block."""
    memory, rows = MemoryEvents(), Convolutions()
    history = [
        ("alloc", 1, cached), ("free_requested", 1, cached), ("free_completed", 1, cached),
        ("alloc", 2, workspace), ("free_requested", 2, workspace), ("free_completed", 2, workspace),
    ]  # fmt: skip
    for time_us, (action, address, size) in enumerate(history):
        columns = (time_us, ACTIONS.index(action), address, size, 0, 0, -1, -1)
        names = ("time_us", "action", "address", "size", "stream", "device", "stack", "origin")
        for name, value in zip(names, columns, strict=True):
            getattr(memory, name).append(value)
    convolution = {
        "time_us": 3, "name": 0, "workspace_bytes": workspace, "x_bytes": workspace // 2, "y_bytes": workspace // 2,
        "w_bytes": weights, "direction": DIRECTIONS.index(direction),
    }  # fmt: skip
    for name, value in convolution.items():
        getattr(rows, name).append(value)
    return cast(Trace, cast(Any, SimpleNamespace(memory=memory, convolutions=rows, allocator=AllocatorSettings())))


def test_partial_sums_decide_whether_a_workspace_fits_into_a_cached_block() -> None:
    nearly_full = trace_of("weights", cached=400 * MIB, workspace=400 * MIB, weights=2 * MIB)
    _, of_sums = workspace_spreads(nearly_full, 0) or (0, 0)
    assert of_sums == (400 + PARTIAL_SUMS * 2) * MIB  # a segment more, next to the one that is too small
    roomy = trace_of("weights", cached=500 * MIB, workspace=400 * MIB, weights=2 * MIB)
    _, of_sums = workspace_spreads(roomy, 0) or (1, 1)
    assert of_sums == 0


def test_only_gradients_of_weights_are_summed_in_parts() -> None:
    trace = trace_of("data", cached=400 * MIB, workspace=400 * MIB, weights=2 * MIB)
    _, of_sums = workspace_spreads(trace, 0) or (1, 1)
    assert of_sums == 0


def test_without_convolutions_or_without_workspaces_no_sums_are_replayed() -> None:
    nothing = cast(Trace, cast(Any, SimpleNamespace(convolutions=Convolutions())))
    assert workspace_spreads(nothing, 0) == (0, 0)
    _, of_sums = workspace_spreads(trace_of("weights", cached=400 * MIB, workspace=0, weights=2 * MIB), 0) or (1, 1)
    assert of_sums == 0
