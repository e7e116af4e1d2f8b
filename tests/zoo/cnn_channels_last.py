"""A convolutional network in channels-last layout."""

import torch
from common import image_batches, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    ).to(device, memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for images, labels in image_batches(device, batch_size=16):
        images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
