"""bitsandbytes' quantised layers, frozen, under a trained head: 8-bit, and 4-bit with doubly quantised constants."""

import bitsandbytes as bnb
import torch
from common import report
from torch import nn

WIDTH = 1024


def train(name: str, layer: nn.Module) -> None:
    before = torch.cuda.memory_allocated()
    layer = layer.cuda().requires_grad_(False)
    weight_bytes = torch.cuda.memory_allocated() - before
    head = nn.Linear(WIDTH, 8, dtype=torch.bfloat16, device="cuda")
    optimizer = torch.optim.AdamW(head.parameters())
    for _ in range(2):
        inputs = torch.randn(4, 16, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        head(layer(inputs)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(name, WIDTH * WIDTH, weight_bytes)


def four_bits(*, compress_statistics: bool) -> nn.Module:
    return bnb.nn.Linear4bit(
        WIDTH,
        WIDTH,
        bias=False,
        compute_dtype=torch.bfloat16,
        quant_type="nf4",
        compress_statistics=compress_statistics,
    )


train("Linear8bitLt", bnb.nn.Linear8bitLt(WIDTH, WIDTH, bias=False, has_fp16_weights=False))
train("Linear4bit plain", four_bits(compress_statistics=False))
train("Linear4bit double", four_bits(compress_statistics=True))
report()
