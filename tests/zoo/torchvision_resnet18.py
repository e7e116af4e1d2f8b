"""torchvision's ResNet-18 on small pictures, with a linear warm-up."""

import torch
from common import image_batches, report, setup
from torch import nn
from torchvision.models import resnet18


def main() -> None:
    device = setup(__doc__)
    model = resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
    for images, labels in image_batches(device, batch_size=4, size=64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()
    report()


if __name__ == "__main__":
    main()
