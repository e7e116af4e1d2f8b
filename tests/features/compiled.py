"""torch.compile with Inductor and Triton: a fused training step, also as CUDA graphs, and FlexAttention."""

import sys

import torch
from common import report
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Block(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))).square())


def train(how: str) -> None:
    model = Block().cuda()
    step = model if how == "eager" else torch.compile(model, mode=how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        step(torch.randn(512, 256, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def attend() -> None:
    attention = torch.compile(flex_attention)
    query, key, value = (torch.randn(1, 2, 256, 32, device="cuda", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
    attention(query, key, value, block_mask=mask).mean().backward()


if sys.argv[1] == "flex":
    attend()
else:
    train(sys.argv[1])
report()
