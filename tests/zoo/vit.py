"""A vision transformer from torch.nn.TransformerEncoder."""

import torch
from common import image_batches, report, setup
from torch import nn


class ViT(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def main() -> None:
    device = setup(__doc__)
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    loss_function = nn.CrossEntropyLoss(label_smoothing=0.1)
    for images, labels in image_batches(device, batch_size=16):
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
