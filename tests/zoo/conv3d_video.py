"""Three-dimensional convolutions over short videos."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(
        nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, stride=2, padding=1), nn.BatchNorm3d(32), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 4),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        videos, labels = torch.randn(2, 3, 8, 24, 24).to(device), torch.randint(4, (2,)).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(videos), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
