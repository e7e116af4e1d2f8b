"""What of a trace decides how sure its estimate is (rules/interval.py)."""

from __future__ import annotations

from collections.abc import Sequence

from foretell.analysis.batches import differ_in_number_only
from foretell.analysis.steps import most_waiting_bytes
from foretell.analysis.workspaces import Moves, WorkspaceMoves, workspace_moves
from foretell.protocol.native_log import WORKSPACE_SOURCES
from foretell.records import Batches, ConvolutionKind, Evidence, StepPeak
from foretell.rules.libraries import MEASURED_CONTEXTS
from foretell.trace import DeviceMemory, Trace

_RULE = WORKSPACE_SOURCES.index("rule")
_UNDOCUMENTED = ("cufft", "cusolver")


def evidence_of(
    trace: Trace, counters: DeviceMemory, *, library_bytes: int, steps: Sequence[StepPeak], batches: Batches | None
) -> Evidence:
    peaks = [step.peak_allocated_bytes for step in steps]
    is_varied = batches is not None and batches.num_shapes > 1 and not batches.is_largest_trained
    may_be_longer = is_varied and not differ_in_number_only(trace)
    rows = trace.convolutions
    # Without a history: the tensors that cuDNN may copy.
    largest = max(map(sum, zip(rows.x_bytes, rows.y_bytes, rows.w_bytes, strict=True)), default=0)
    unknown = Moves(largest, largest)
    moves = workspace_moves(trace, counters.device) or WorkspaceMoves(unknown, unknown, unknown)
    return Evidence(
        kind=_kind(trace),
        reserved_bytes=counters.peak_reserved_bytes,
        workspaces_less_bytes=moves.others.less_bytes,
        workspaces_more_bytes=moves.others.more_bytes,
        sums_less_bytes=moves.sums.less_bytes,
        sums_more_bytes=moves.sums.more_bytes,
        alike_less_bytes=moves.alike.less_bytes,
        alike_more_bytes=moves.alike.more_bytes,
        context_bytes=trace.context_bytes,
        is_context_given=trace.is_context_given,
        context_below_bytes=trace.context_below_bytes,
        context_above_bytes=trace.context_above_bytes,
        is_context_kind_measured=trace.gpu.compute_capability in MEASURED_CONTEXTS,
        library_bytes=library_bytes,
        waiting_bytes=most_waiting_bytes(trace.memory, device=counters.device),
        longer_bytes=max(peaks) - min(peaks) if may_be_longer and peaks else 0,
        are_lengths_unknown=may_be_longer,
        connection_bytes=_connection_bytes(trace),
        connections=trace.connections,
        undocumented_bytes=_undocumented_bytes(trace),
    )


def _kind(trace: Trace) -> ConvolutionKind:
    rows = trace.convolutions
    if not rows.time_us:
        return "plain"
    if _RULE not in rows.workspace_source:
        return "asked"
    return "ruled" if any(rows.workspace_bytes) else "unruled"


def _undocumented_bytes(trace: Trace) -> int:
    rows, names = trace.library, trace.names
    others = (
        size
        for name, size in zip(rows.name, rows.workspace_bytes, strict=True)
        if names[name].lower().startswith(_UNDOCUMENTED)
    )
    return max([*trace.recurrent.workspace_bytes, *others], default=0)


def _connection_bytes(trace: Trace) -> int:
    """NCCL's buffers (native/libraries/nccl.c); those that were freed as well."""
    driver = trace.driver
    numbers = {number for number, name in enumerate(trace.names) if name == "NCCL buffers"}
    rows = zip(driver.name, driver.size, driver.is_free, strict=True)
    return sum(size for name, size, is_free in rows if name in numbers and not is_free)
