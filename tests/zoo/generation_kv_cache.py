"""Generation token by token with a growing key-value cache, in half precision."""

import torch
from common import report, setup
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


@torch.no_grad()
def main() -> None:
    device = setup(__doc__)
    embedding = nn.Embedding(128, 64).to(device, torch.bfloat16)
    layers = nn.ModuleList(Attention() for _ in range(2)).to(device, torch.bfloat16)
    tokens = torch.randint(128, (4, 16)).to(device)
    caches: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(layers)
    new = tokens
    while tokens.shape[1] < 32:
        x = embedding(new)
        for number, layer in enumerate(layers):
            y, caches[number] = layer(x, caches[number])
            x = x + y
        new = (x[:, -1] @ embedding.weight.T).argmax(dim=-1, keepdim=True) % 128
        tokens = torch.cat([tokens, new], dim=1)
    report()


if __name__ == "__main__":
    main()
