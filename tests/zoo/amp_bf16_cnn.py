"""Mixed precision in bfloat16 over convolutions and batch normalisation."""

import torch
from common import image_batches, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for images, labels in image_batches(device, batch_size=16):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(images)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
