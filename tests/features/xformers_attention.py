"""xformers' memory-efficient attention, whose operators bring CUDA kernels of their own."""

import torch
import xformers.ops as xops
from common import report
from torch import nn

BATCH, LENGTH, HEADS, WIDTH = 4, 2048, 4, 64


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.outward = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inward(x).view(BATCH, LENGTH, 3, HEADS, WIDTH).unbind(2)
        mixed = xops.memory_efficient_attention(query, key, value, attn_bias=xops.LowerTriangularMask())
        return self.outward(mixed.flatten(2))


model = nn.Sequential(Attention(), Attention()).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(BATCH, LENGTH, HEADS * WIDTH, dtype=torch.bfloat16, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("scores", BATCH * HEADS * LENGTH * LENGTH * 2)
report()
