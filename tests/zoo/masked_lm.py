"""Masked language modelling: the loss only over the positions a boolean mask selects."""

import torch
from common import report, setup, token_batches
from torch import nn
from torch.nn import functional as F


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256)).to(device)
    head = nn.Linear(256, 128).to(device)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    for tokens, _ in token_batches(device, batch_size=8, length=40):
        labels = torch.where(tokens % 7 == 3, tokens, -100)
        selected = labels != -100
        hidden = model(tokens.masked_fill(selected, 0))
        loss = F.cross_entropy(head(hidden[selected]), labels[selected])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{selected.sum().item()} positions")
    report()


if __name__ == "__main__":
    main()
