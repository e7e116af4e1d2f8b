"""The ranks of a job side by side: which need the same, and which needs the most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foretell.errors import ForetellError
from foretell.records import Estimate, RankEstimate, World
from foretell.rules.capacity import capacity_of
from foretell.trace import DeviceMemory, Trace


def compare_ranks(
    trace: Trace, estimate_of: Callable[[Trace], Estimate]
) -> tuple[World, tuple[RankEstimate, ...], Trace]:
    """`estimate_of` estimates a single rank. Also returns the trace of the one that needs the most."""
    own = replace(trace, other_ranks=())
    traces = sorted((own, *trace.other_ranks), key=_number)
    alike: dict[str, list[Trace]] = {}
    for each in traces:
        alike.setdefault(_needs(each), []).append(each)
    found: list[tuple[RankEstimate, Trace]] = []
    for group in alike.values():
        try:
            found.append((_row(group, estimate_of(group[0])), group[0]))
        except ForetellError:  # it was stopped before anything was known of it
            continue
    if not found:
        found = [(_row([own], estimate_of(own)), own)]  # raises: nothing is known of any
    row, worst = max(found, key=lambda each: (each[0].oom is not None, each[0].peak.device_bytes))
    world = World(
        size=max(each.rank.world_size for each in traces if each.rank is not None),
        ranks_run=tuple(map(_number, traces)),
        worst_rank=row.rank,
    )
    return world, tuple(each for each, _ in found), worst


def _number(trace: Trace) -> int:
    assert trace.rank is not None, f"process {trace.pid} is no rank"
    return trace.rank.rank


def _row(group: list[Trace], estimate: Estimate) -> RankEstimate:
    first = group[0]
    return RankEstimate(
        rank=_number(first),
        stands_for=tuple(map(_number, group)),
        local_rank=first.rank.local_rank if first.rank is not None else None,
        verdict=estimate.verdict,
        peak=estimate.peak,
        num_steps=len(estimate.steps),
        spare_bytes=capacity_of(estimate).spare_bytes(estimate.device_bytes),
        oom=estimate.oom,
        is_complete=estimate.complete and (first.is_ended or estimate.oom is not None),
    )


def _needs(trace: Trace) -> str:
    """Equal for ranks that need the same: PyTorch's counters at the end and after each step, and what NVIDIA's
    libraries take."""
    steps = [_counters(mark.devices) for mark in trace.steps]
    libraries = sorted(trace.library_functions())
    in_use = max(trace.driver.in_use, default=0)
    ooms = [mark.oom for mark in trace.ooms]
    return repr((steps, _counters(trace.final), in_use, libraries, ooms, trace.is_ended))


def _counters(devices: tuple[DeviceMemory, ...]) -> list[DeviceMemory]:
    """Each rank has a card of its own, with a number of its own."""
    return [replace(each, device=0) for each in devices if each.peak_reserved_bytes]
