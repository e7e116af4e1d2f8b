"""A whole model in bfloat16, built on the CPU, cast and moved."""

import torch
from common import report, setup, token_batches
from torch import nn
from torch.nn import functional as F


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(
        nn.Embedding(128, 128),
        nn.Linear(128, 512),
        nn.SiLU(),
        nn.Linear(512, 128),
        nn.LayerNorm(128),
        nn.Linear(128, 128),
    )
    model = model.to(torch.bfloat16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for tokens, targets in token_batches(device, batch_size=8):
        loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
