"""Group, layer, instance and batch normalisation, also frozen ones."""

import torch
from common import image_batches, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    frozen = nn.BatchNorm2d(16)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.InstanceNorm2d(16, affine=True),
        nn.Conv2d(16, 16, 3, padding=1),
        frozen,
        nn.Conv2d(16, 16, 3, padding=1),
        nn.LayerNorm([16, 32, 32]),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.BatchNorm1d(64),
        nn.RMSNorm(64),
        nn.Linear(64, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for images, labels in image_batches(device):
        model.train()
        frozen.eval()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
