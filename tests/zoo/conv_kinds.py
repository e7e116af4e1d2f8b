"""Convolutions of every kind: 1 to 3 dimensions, transposed, grouped, dilated, channels last, benchmark mode."""

import torch
from common import STEPS, report, setup
from torch import nn


class EveryConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Sequential(nn.Conv1d(4, 16, 5, padding=4, dilation=2), nn.ConvTranspose1d(16, 4, 4, stride=2))
        self.plane = nn.Sequential(
            nn.Conv2d(4, 16, 3, padding=1, groups=2),
            nn.Conv2d(16, 16, 3, padding=2, dilation=2, padding_mode="reflect"),
            nn.Conv2d(16, 16, 3, padding="same", groups=16),
            nn.ConvTranspose2d(16, 8, 3, stride=2, output_padding=1, groups=4),
            nn.Conv2d(8, 4, 1),
        )
        self.space = nn.Sequential(nn.Conv3d(4, 8, 3, stride=(1, 2, 2)), nn.ConvTranspose3d(8, 4, 3, dilation=2))
        self.patches = nn.Unfold(4, stride=4)

    def forward(self, signal: torch.Tensor, image: torch.Tensor, video: torch.Tensor) -> torch.Tensor:
        plane = self.plane(image)
        return self.line(signal).mean() + plane.mean() + self.space(video).mean() + self.patches(plane).mean()


def main() -> None:
    device = setup(__doc__)
    torch.backends.cudnn.benchmark = True
    model = EveryConvolution().to(device)
    model.plane.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        signal, video = torch.randn(4, 4, 64).to(device), torch.randn(2, 4, 8, 16, 16).to(device)
        image = torch.randn(4, 4, 32, 32).to(device, memory_format=torch.channels_last)
        optimizer.zero_grad()
        model(signal, image, video).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
