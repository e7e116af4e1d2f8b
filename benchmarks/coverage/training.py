"""Two training steps of one model, the same on the CPU and on the virtual GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 2
BIG = 100_000_000
"""Parameters from which on plain SGD is used: AdamW's state would double what the CPU run needs of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    model: nn.Module
    batch: Any
    """Tensors on the CPU, in lists and dicts."""
    loss: Callable[[nn.Module, Any], Tensor]
    evaluate: Callable[[nn.Module, Any], object] | None = None
    """One forward without gradients after training, where it is another code path than training."""


def train(task: Task, device: torch.device) -> None:
    model = task.model.to(device).train()
    batch = moved(task.batch, device)
    # A weight initialisation that was skipped has drawn fewer numbers: both runs go on from the same point.
    seed()
    optimizer = optimizer_for(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    if task.evaluate is not None:
        model.eval()
        with torch.no_grad():
            task.evaluate(model, batch)


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if sum(parameter.numel() for parameter in trained) >= BIG:
        return torch.optim.SGD(trained, lr=1e-3)
    return torch.optim.AdamW(trained, lr=1e-4)


def seed() -> None:
    """Numbers drawn on the host decide branches (which layer is dropped, which frames are masked)."""
    random.seed(0)
    torch.manual_seed(0)
    import numpy

    numpy.random.seed(0)


def generator() -> torch.Generator:
    """For inputs: independent of how many numbers the weights took."""
    return torch.Generator().manual_seed(1)


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(each, device) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(each, device) for each in value)
    return value


def images(size: int, *, batch_size: int = 2, channels: int = 3) -> Tensor:
    return torch.rand(batch_size, channels, size, size, generator=generator())


def classes(num_classes: int, *shape: int) -> Tensor:
    return torch.randint(num_classes, shape, generator=generator())
