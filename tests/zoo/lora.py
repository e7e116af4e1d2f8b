"""Low-rank adapters on frozen layers: few gradients, little optimizer state."""

import torch
from common import STEPS, report, setup
from torch import nn


class Adapted(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) * 0.01)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (x @ self.down.T) @ self.up.T


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(Adapted(nn.Linear(512, 1024)), nn.GELU(), Adapted(nn.Linear(1024, 512))).to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(64, 512).to(device)).square().mean().backward()
        optimizer.step()
    print(f"{sum(parameter.numel() for parameter in trained)} trained parameters")
    report()


if __name__ == "__main__":
    main()
