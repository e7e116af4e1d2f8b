"""The ranks of a job, a row for those that need the same."""

from __future__ import annotations

from collections.abc import Iterable

from foretell.records import Estimate, RankEstimate, World


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def of_rank(estimate: Estimate) -> str:
    """Which ranks the numbers of the estimate are of."""
    assert estimate.world is not None
    alike = next((each.stands_for for each in estimate.ranks if each.rank == estimate.world.worst_rank), ())
    if len(alike) == estimate.world.size:
        return f"on each of {estimate.world.size} ranks"
    return f"on rank {ranges(alike)}" if len(alike) == 1 else f"on ranks {ranges(alike)}"


def how_many(world: World) -> str:
    return f"{len(world.ranks_run)} of {world.size} ranks were run, each on a card of its own"


def remark(rank: RankEstimate) -> str:
    if rank.oom is not None:
        return "out of memory"
    return "" if rank.is_complete else "stopped early"
