"""A hand-written autograd function and a tensor hook."""

import torch
from common import STEPS, report, setup
from torch import nn


class ClampedSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, limit: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.square().clamp(max=limit)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x * (x.square() < ctx.limit), None


def main() -> None:
    device = setup(__doc__)
    first, second = nn.Linear(128, 512).to(device), nn.Linear(512, 8).to(device)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    seen = []
    for _ in range(STEPS):
        hidden = ClampedSquare.apply(first(torch.randn(64, 128).to(device)), 4.0)
        hidden.register_hook(lambda gradient: seen.append(gradient.shape))
        optimizer.zero_grad()
        second(hidden).mean().backward()
        optimizer.step()
    assert len(seen) == STEPS
    report()


if __name__ == "__main__":
    main()
