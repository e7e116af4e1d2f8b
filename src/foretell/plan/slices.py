"""Which MIG slices of a card several jobs can have at the same time.

The memory of a card is divided into slots (8, or 4 on cards with at most four slices), and each profile begins only at
certain ones: as many as the card has room for instances of it, a slice's length apart. So the driver places them.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretell import gpus
from foretell.errors import UsageError
from foretell.records import Gpu


def assign(card: Gpu, needs: Sequence[int]) -> list[Gpu] | None:
    """A slice for each job that has at least that much memory: the smallest, then larger ones as long as there is room
    for all. None: there is no room. Raises `UsageError` if the card cannot be divided."""
    own = [gpu for gpu in gpus.all_slices() if gpu.name.partition(":")[0] == card.name]
    if not own:
        known = dict.fromkeys(gpu.name.partition(":")[0] for gpu in gpus.all_slices())
        raise UsageError(f"{card.name} cannot be divided into MIG slices. Those that can: {', '.join(known)}.")
    own.sort(key=lambda gpu: (gpu.total_bytes, gpu.num_sms))
    choices = [[gpu for gpu in own if gpu.total_bytes >= need] for need in needs]
    if not all(choices):
        return None
    chosen = [0] * len(needs)

    def has_room(numbers: Sequence[int]) -> bool:
        return _has_room(card, [choice[number] for choice, number in zip(choices, numbers, strict=True)])

    if not has_room(chosen):
        return None
    has_grown = True
    while has_grown:  # in turns, so that all get about as much
        has_grown = False
        for job, choice in enumerate(choices):
            larger = next(
                (n for n in range(chosen[job] + 1, len(choice)) if has_room([*chosen[:job], n, *chosen[job + 1 :]])),
                None,
            )
            if larger is not None:
                chosen[job], has_grown = larger, True
    return [choice[number] for choice, number in zip(choices, chosen, strict=True)]


def _has_room(card: Gpu, slices: Sequence[Gpu]) -> bool:
    num_slots = 8 if max(gpus.slices_per_card(gpu) or 0 for gpu in gpus.all_slices() if _is_of(gpu, card)) > 4 else 4
    return _placed(num_slots, [_places(card, gpu, num_slots) for gpu in slices], 0)


def _is_of(gpu: Gpu, card: Gpu) -> bool:
    return gpu.name.partition(":")[0] == card.name


def _places(card: Gpu, gpu: Gpu, num_slots: int) -> list[int]:
    """The slots that it can take, as bits."""
    length = max(1, round(num_slots * gpu.total_bytes / card.total_bytes))
    mask = (1 << length) - 1
    return [mask << length * number for number in range(gpus.slices_per_card(gpu) or 1)]


def _placed(num_slots: int, places: Sequence[Sequence[int]], taken: int) -> bool:
    if not places:
        return True
    return any(
        not (taken & place) and place < 1 << num_slots and _placed(num_slots, places[1:], taken | place)
        for place in places[0]
    )
