"""Gradient accumulation: the optimizer steps after every second batch."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    every = 2
    for batch in range(STEPS * every):
        inputs, labels = torch.randn(32, 256).to(device), torch.randint(10, (32,)).to(device)
        loss = nn.functional.cross_entropy(model(inputs), labels) / every
        loss.backward()
        if (batch + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    report()


if __name__ == "__main__":
    main()
