"""A detector-like network: a dictionary of outputs, several losses, boxes by index."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.nn import functional as F


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleList(
            [nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 64, 3, 2, 1)]
        )
        self.lateral = nn.ModuleList(nn.Conv2d(channels, 32, 1) for channels in (16, 32, 64))
        self.classes, self.boxes = nn.Conv2d(32, 5, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, images: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        levels, x = [], images
        for convolution, lateral in zip(self.backbone, self.lateral, strict=True):
            x = F.relu(convolution(x))
            levels.append(lateral(x))
        for upper in range(len(levels) - 1, 0, -1):
            levels[upper - 1] = levels[upper - 1] + F.interpolate(levels[upper], scale_factor=2, mode="nearest")
        return {"classes": [self.classes(level) for level in levels], "boxes": [self.boxes(level) for level in levels]}


def main() -> None:
    device = setup(__doc__)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        outputs = model(torch.randn(2, 3, 64, 64).to(device))
        logits = torch.cat([level.flatten(2) for level in outputs["classes"]], dim=2).transpose(1, 2)
        boxes = torch.cat([level.flatten(2) for level in outputs["boxes"]], dim=2).transpose(1, 2)
        labels = (torch.arange(logits.shape[1]) % 6).expand(2, -1).to(device)
        objects = labels < 5
        losses = {
            "classes": F.cross_entropy(logits[objects], labels[objects]),
            "boxes": F.smooth_l1_loss(boxes[objects], torch.rand(int(objects.sum()), 4).to(device)),
        }
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
