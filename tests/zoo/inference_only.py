"""No training: a network under inference_mode; the script never steps and runs to its end."""

import torch
from common import image_batches, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to(device).eval()  # fmt: skip
    outputs = []
    with torch.inference_mode():
        for images, _ in image_batches(device, batch_size=32):
            outputs.append(model(images).softmax(dim=1).cpu())
    print(f"{torch.cat(outputs).shape[0]} predictions")
    report()


if __name__ == "__main__":
    main()
