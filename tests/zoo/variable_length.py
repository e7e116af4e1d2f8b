"""Batches of another length at every step: the allocator's cache is split and grows."""

import torch
from common import report, setup
from torch import nn
from torch.nn import functional as F


def main() -> None:
    device = setup(__doc__)
    embedding, attention, head = (
        nn.Embedding(128, 64),
        nn.MultiheadAttention(64, 4, batch_first=True),
        nn.Linear(64, 128),
    )
    model = nn.ModuleList([embedding, attention, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch_size, length in [(8, 40), (4, 96), (16, 17), (3, 130), (8, 64)]:
        tokens = torch.randint(128, (batch_size, length)).to(device)
        x = embedding(tokens)
        x = x + attention(x, x, x, need_weights=False)[0]
        loss = F.cross_entropy(head(x).transpose(1, 2), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
