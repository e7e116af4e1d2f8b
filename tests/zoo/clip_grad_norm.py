"""Gradients clipped by norm and by value; the norm is logged with .item()."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    log = []
    for _ in range(STEPS):
        inputs, labels = torch.randn(32, 256).to(device), torch.randint(10, (32,)).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        log.append((loss.item(), norm.item()))
    print(f"{len(log)} steps logged")
    report()


if __name__ == "__main__":
    main()
