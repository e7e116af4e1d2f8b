"""Two cards in one process: DataParallel, then a model that Accelerate spreads over both."""

import torch
from accelerate import dispatch_model
from common import report
from torch import nn

assert torch.cuda.device_count() == 2


def train(model: nn.Module, inputs: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
train(nn.DataParallel(model.cuda()), torch.randn(32, 512, device="cuda:0"))
print("replicas", torch.cuda.max_memory_allocated(1))

blocks = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
spread = dispatch_model(blocks, device_map={str(layer): int(layer >= 2) for layer in range(6)})
print("devices", [each.weight.device.index for each in spread])
train(spread, torch.randn(8, 512, device="cuda:0"))
report()
