"""What the scripts beside it share: a few training steps, and one operator after the other with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

DEVICE = torch.device("cuda")


def randn(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, device=DEVICE, **options)


def train(
    model: nn.Module,
    batch: Callable[[], Any],
    loss: Callable[[Tensor], Tensor] = lambda result: result.float().square().mean(),
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> None:
    model.to(DEVICE)
    steps = optimizer(model.parameters(), lr=1e-3, **options)
    for _ in range(3):
        steps.zero_grad()
        inputs = batch()
        loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs)).backward()
        steps.step()


def one_by_one(x: Tensor, *calls: Callable[[], Tensor]) -> None:
    """A block of a size nothing else has tells where each begins."""
    for call in calls:
        call().float().mean().backward()
        x.grad = None
        torch.ones(333_333, device=DEVICE)


class Lambda(nn.Module):
    """Modules, and what is done with them."""

    def __init__(self, forward: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._forward = forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._forward(*self.parts, *inputs)
