"""How far the peak moves in replays with other workspaces of cuDNN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from foretell.allocator import AllocatorSettings
from foretell.analysis.workspaces import PARTIAL_SUMS, Moves, WorkspaceMoves, is_pointwise, workspace_moves
from foretell.protocol.history import ACTIONS
from foretell.protocol.native_log import DIRECTIONS, WORKSPACE_SOURCES
from foretell.trace import Convolutions, MemoryEvents, Trace
from foretell.units import MIB

CUDNN_HALF = 2


def trace_of(direction: str, *, cached: int, workspace: int, weights: int, source: str = "asked") -> Trace:
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
        "workspace_source": WORKSPACE_SOURCES.index(source), "multiply_adds": 0, "data_type": 0,
    }  # fmt: skip
    for name, value in convolution.items():
        getattr(rows, name).append(value)
    return cast(Trace, cast(Any, SimpleNamespace(memory=memory, convolutions=rows, allocator=AllocatorSettings())))


def moves_of(trace: Trace) -> WorkspaceMoves:
    found = workspace_moves(trace, 0)
    assert found is not None
    return found


def test_partial_sums_decide_whether_a_workspace_fits_into_a_cached_block() -> None:
    nearly_full = trace_of("weights", cached=400 * MIB, workspace=400 * MIB, weights=2 * MIB)
    # A segment more, next to the one that is too small.
    assert moves_of(nearly_full).sums == (0, (400 + PARTIAL_SUMS * 2) * MIB)
    roomy = trace_of("weights", cached=500 * MIB, workspace=400 * MIB, weights=2 * MIB)
    assert moves_of(roomy).sums == (0, 0)


def test_only_gradients_of_weights_are_summed_in_parts() -> None:
    assert moves_of(trace_of("data", cached=400 * MIB, workspace=400 * MIB, weights=2 * MIB)).sums == (0, 0)


def test_where_cudnn_was_asked_many_convolutions_may_do_without_workspaces_together() -> None:
    asked = trace_of("data", cached=100 * MIB, workspace=400 * MIB, weights=2 * MIB)
    assert moves_of(asked).alike == (400 * MIB, 0)
    ruled = trace_of("data", cached=100 * MIB, workspace=400 * MIB, weights=2 * MIB, source="rule")
    assert moves_of(ruled).alike == (0, 0)


def test_where_cudnn_was_asked_all_convolutions_of_a_direction_may_copy_their_tensors() -> None:
    history = trace_of("forward", cached=100 * MIB, workspace=0, weights=180 * MIB)
    assert moves_of(history).alike == (0, 180 * MIB)


@pytest.mark.parametrize(
    ("filters", "stride", "expected"), [(1, 1, True), (1, 2, True), (3, 1, False), (3, 2, False), (16, 16, True)]
)
def test_convolutions_that_read_nothing_twice_are_pointwise(filters: int, stride: int, expected: bool) -> None:
    channels, outputs, positions, element = 64, 32, 49, 2
    rows = Convolutions()
    sizes = {
        "x_bytes": channels * positions * stride**2 * element,
        "y_bytes": outputs * positions * element,
        "w_bytes": channels * outputs * filters**2 * element,
        "multiply_adds": channels * outputs * filters**2 * positions,
        "data_type": CUDNN_HALF,
    }
    for name, value in sizes.items():
        getattr(rows, name).append(value)
    assert is_pointwise(cast(Trace, cast(Any, SimpleNamespace(convolutions=rows))), 0) is expected


def test_without_convolutions_or_without_workspaces_no_sums_are_replayed() -> None:
    nothing = cast(Trace, cast(Any, SimpleNamespace(convolutions=Convolutions())))
    assert moves_of(nothing) == (Moves(0, 0),) * 3
    assert moves_of(trace_of("weights", cached=400 * MIB, workspace=0, weights=2 * MIB)).sums == (0, 0)
