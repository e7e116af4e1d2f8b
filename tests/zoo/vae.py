"""A variational autoencoder: random numbers made on the GPU, two losses added."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.nn import functional as F


def main() -> None:
    device = setup(__doc__)
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 32),
    )
    decoder = nn.Sequential(
        nn.Linear(16, 32 * 7 * 7), nn.Unflatten(1, (32, 7, 7)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder}).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        images = torch.rand(16, 1, 28, 28).to(device)
        mean, log_variance = model["encoder"](images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        reconstruction = F.binary_cross_entropy_with_logits(model["decoder"](code), images, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        optimizer.zero_grad()
        (reconstruction + divergence).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
