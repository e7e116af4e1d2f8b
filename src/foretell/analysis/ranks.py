"""The ranks of a job side by side: which need the same, which stand for those that were not run, and which needs the
most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from foretell.errors import ForetellError
from foretell.records import Communicator, Estimate, RankEstimate, World
from foretell.trace import DeviceMemory, Trace
from foretell.trace.records import RankMark


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
    worst_row, worst = max(found, key=lambda each: (each[0].oom is not None, each[0].peak.device_bytes))
    size = max(_mark(each).world_size for each in traces)
    rows, unknown = stand_for_others([row for row, _ in found], [_mark(each) for each in traces], size)
    world = World(
        size=size,
        ranks_run=tuple(map(_number, traces)),
        worst_rank=worst_row.rank,
        gpus_per_node=max(_mark(each).gpus_per_node or 0 for each in traces) or None,
        unknown=unknown,
    )
    return world, tuple(rows), worst


def stand_for_others(
    rows: Sequence[RankEstimate], marks: Sequence[RankMark], size: int
) -> tuple[list[RankEstimate], tuple[int, ...]]:
    """The rows, with the ranks that were not run in that of the rank of their role that needs the most; and those whose
    role no rank had that was run. A role is a stage of a pipeline: all else is the same on each rank, but for shards of
    unequal size, the largest of which are those of the first ranks."""
    run = {mark.rank for mark in marks}
    if len(run) == size:
        return list(rows), ()
    role_of = roles(marks, size)
    most: dict[int, RankEstimate] = {}
    for row in sorted(rows, key=lambda row: (row.oom is not None, row.peak.device_bytes)):
        most.update(dict.fromkeys(map(role_of, row.stands_for), row))
    others: dict[int, list[int]] = {}
    unknown = []
    for rank in range(size):
        if rank not in run and role_of(rank) in most:
            others.setdefault(most[role_of(rank)].rank, []).append(rank)
        elif rank not in run:
            unknown.append(rank)
    found = [replace(row, stands_for=tuple(sorted((*row.stands_for, *others.get(row.rank, ()))))) for row in rows]
    return found, tuple(unknown)


def roles(marks: Iterable[RankMark], size: int) -> Callable[[int], int]:
    """The stage of the pipeline that a rank is, from those that were seen to be next to each other: meshes of ranks are
    regular. Without a pipeline all are stage 0."""
    chain = _longest_chain(marks)
    steps = {later - earlier for earlier, later in pairwise(chain)}
    if len(steps) != 1:
        places = {rank: stage for stage, rank in enumerate(chain)}
        return lambda rank: places.get(rank, len(chain)) if chain else 0
    (stride,) = steps
    return lambda rank: (rank // stride) % len(chain)


def _longest_chain(marks: Iterable[RankMark]) -> list[int]:
    """Of ranks that are next to each other in a pipeline, directly or by others."""
    chains: list[set[int]] = []
    for mark in marks:
        edges = {rank for each in mark.communicators for rank in each.neighbours}
        joined = {mark.rank, *edges} if edges else set()
        apart = [chain for chain in chains if not chain & joined]
        joined = joined.union(*(chain for chain in chains if chain & joined))
        chains = [*apart, joined] if joined else apart
    return max(((len(chain), sorted(chain)) for chain in chains), default=(0, []))[1]


def _mark(trace: Trace) -> RankMark:
    assert trace.rank is not None, f"process {trace.pid} is no rank"
    return trace.rank


def _number(trace: Trace) -> int:
    return _mark(trace).rank


def _row(group: list[Trace], estimate: Estimate) -> RankEstimate:
    first = group[0]
    mark = _mark(first)
    communicators = _communicators(first)
    return RankEstimate(
        rank=mark.rank,
        stands_for=tuple(map(_number, group)),
        local_rank=mark.local_rank,
        verdict=estimate.verdict,
        peak=estimate.peak,
        num_steps=len(estimate.steps),
        spare_bytes=estimate.spare_bytes,
        oom=estimate.oom,
        is_complete=estimate.complete and (first.is_ended or estimate.oom is not None),
        needed_by=mark.needed_by,
        nccl_bytes=sum(each.bytes for each in communicators),
        communicators=communicators,
    )


def _communicators(trace: Trace) -> tuple[Communicator, ...]:
    mark = _mark(trace)
    seen: Counter[str] = Counter()
    found = []
    for use in mark.communicators:
        kind = "all ranks" if use.size == mark.world_size else f"{use.size} ranks"
        seen[kind] += 1
        name = kind if seen[kind] == 1 else f"{kind} ({seen[kind]})"
        found.append(
            Communicator(
                name=name, size=use.size, channels=use.num_channels, kinds=use.kinds, bytes=use.buffer_bytes
            )
        )
    return tuple(found)


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
