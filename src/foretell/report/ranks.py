"""The ranks of a job, a row for those that need the same."""

from __future__ import annotations

from collections.abc import Iterable

from foretell.records import Estimate, RankEstimate, World

_MOST_RANGES = 8


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6`, or `0, 2, ... 1022 (512 ranks)` if that would be long."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    texts = ["-".join(map(str, run)) for run in runs]
    if len(texts) <= _MOST_RANGES:
        return ", ".join(texts)
    count = sum(run[-1] - run[0] + 1 for run in runs)
    return f"{texts[0]}, {texts[1]}, ... {texts[-1]} ({count:,} ranks)"


def of_rank(estimate: Estimate) -> str:
    """Which ranks the numbers of the estimate are of."""
    assert estimate.world is not None
    alike = next((each.stands_for for each in estimate.ranks if each.rank == estimate.world.worst_rank), ())
    if len(alike) == estimate.world.size:
        return f"on each of {estimate.world.size:,} ranks"
    return f"on rank {ranges(alike)}" if len(alike) == 1 else f"on ranks {ranges(alike)}"


def how_many(world: World) -> str:
    text = f"{len(world.ranks_run)} of {world.size:,} ranks were run, each on a card of its own"
    num_like = world.size - len(world.ranks_run) - len(world.unknown)
    return f"{text}; others are taken to need what those do" if num_like else text


def remark(rank: RankEstimate) -> str:
    if rank.oom is not None:
        return "out of memory"
    if not rank.is_complete:
        return "stopped early"
    return "" if rank.needed_by is None else f"rank {rank.needed_by} needs its data"
