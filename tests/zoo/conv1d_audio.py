"""Dilated one-dimensional convolutions over sound, with group normalisation."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    layers: list[nn.Module] = [nn.Conv1d(1, 32, 5, padding=2)]
    for dilation in (1, 2, 4):
        layers += [nn.Conv1d(32, 32, 3, padding=dilation, dilation=dilation), nn.GroupNorm(4, 32), nn.GELU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        sound, labels = torch.randn(8, 1, 2000).to(device), torch.randint(5, (8,)).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(sound), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
