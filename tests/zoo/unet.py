"""A U-Net: skip connections, transposed convolutions, a loss per pixel."""

import torch
from common import STEPS, report, setup
from torch import nn


def double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(3, 16), double(16, 32), double(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.merge2, self.merge1 = double(64, 32), double(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(nn.functional.max_pool2d(one, 2))
        x = self.bottom(nn.functional.max_pool2d(two, 2))
        x = self.merge2(torch.cat([two, self.up2(x)], dim=1))
        x = self.merge1(torch.cat([one, self.up1(x)], dim=1))
        return self.head(x)


def main() -> None:
    device = setup(__doc__)
    model = UNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        images, masks = torch.randn(4, 3, 48, 48).to(device), torch.randint(2, (4, 48, 48)).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), masks).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
