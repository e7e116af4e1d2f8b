"""What the small networks have in common: batches, and files (`arrays.py`). Torch is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_SORTED_TOGETHER = 16


def batches(lengths: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Positions in random order, each once, in batches of sequences that are about as long: padding costs time."""
    order = torch.randperm(len(lengths))
    parts = []
    for chunk in order.split(size * _SORTED_TOGETHER):
        parts += chunk[lengths[chunk].argsort(stable=True)].split(size)
    for number in torch.randperm(len(parts)).tolist():
        yield parts[number]


def arrays_of(name: str, network: nn.Module) -> dict[str, Any]:
    return {f"{name}/{each}": value.detach().cpu().numpy() for each, value in network.state_dict().items()}


def restore(name: str, network: nn.Module, arrays: dict[str, Any]) -> None:
    """Puts the arrays into a network of the same sizes; a ValueError says what does not fit."""
    state = {}
    for each, value in network.state_dict().items():
        array = arrays.get(f"{name}/{each}")
        if array is None:
            raise ValueError(f"it has no array {name}/{each}")
        expected = value.numpy()
        if getattr(array, "shape", None) != expected.shape or array.dtype != expected.dtype:
            raise ValueError(f"its array {name}/{each} has another shape or type than its card says")
        found = torch.as_tensor(array)
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"its array {name}/{each} has values that are not finite")
        state[each] = found
    network.load_state_dict(state)
    network.eval()
