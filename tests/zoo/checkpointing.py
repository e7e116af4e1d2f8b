"""Activation checkpointing, in both flavours and over a Sequential."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def main() -> None:
    device = setup(__doc__)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)) for _ in range(4)
    ).to(device)
    tail = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW([*blocks.parameters(), *tail.parameters()], lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(128, 256).to(device).requires_grad_()
        for number, block in enumerate(blocks):
            x = x + checkpoint(block, x, use_reentrant=number % 2 == 0)
        x = checkpoint_sequential(tail, 2, x, use_reentrant=False)
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
