"""A BERT whose attention takes a padding mask made from lengths; the longest sentence decides the width."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


def main() -> None:
    device = setup(__doc__)
    width = 64
    embedding = nn.Embedding(100, width, padding_idx=0).to(device)
    layers = nn.ModuleList(Layer(width, 4) for _ in range(2)).to(device)
    head = nn.Linear(width, 2).to(device)
    modules = nn.ModuleList([embedding, layers, head])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-3)
    for step in range(STEPS):
        lengths = torch.tensor([5 + step, 9, 17 - step, 12])
        tokens = torch.zeros(4, 32, dtype=torch.long)
        for row, length in enumerate(lengths.tolist()):
            tokens[row, :length] = torch.randint(1, 100, (length,))
        tokens, lengths, labels = tokens.to(device), lengths.to(device), torch.randint(2, (4,)).to(device)
        tokens = tokens[:, : lengths.max().item()]  # an integer read back from the GPU decides a shape
        mask = torch.arange(tokens.shape[1], device=device)[None, :] < lengths[:, None]
        x = embedding(tokens)
        for layer in layers:
            x = layer(x, mask[:, None, None, :])
        pooled = (x * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(-1)
        optimizer.zero_grad()
        F.cross_entropy(head(pooled), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
