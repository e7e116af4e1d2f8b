"""A frozen teacher under no_grad and a student that learns from its logits."""

import torch
from common import image_batches, report, setup
from torch import nn
from torch.nn import functional as F


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def main() -> None:
    device = setup(__doc__)
    teacher, student = network(64).to(device).eval().requires_grad_(False), network(16).to(device)
    optimizer = torch.optim.Adam(student.parameters())
    for images, labels in image_batches(device, batch_size=16):
        with torch.no_grad():
            wanted = teacher(images)
        logits = student(images)
        hard = F.cross_entropy(logits, labels)
        soft = F.kl_div(
            F.log_softmax(logits / 2, dim=1), F.log_softmax(wanted / 2, dim=1), reduction="batchmean", log_target=True
        )
        optimizer.zero_grad()
        (hard + 4 * soft).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
