"""bitsandbytes' 8-bit optimizers: the state of Adam in one byte a value, paged (managed memory) or not."""

import bitsandbytes as bnb
import torch
from common import report
from torch import nn


def train(make_optimizer) -> torch.optim.Optimizer:
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    optimizer = make_optimizer(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 512, device="cuda")).square().mean().backward()
        optimizer.step()
    return optimizer


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.is_cuda)


for name in ["AdamW", "Adam8bit", "PagedAdamW8bit", "Lion8bit"]:
    before = torch.cuda.memory_allocated()
    optimizer = train(getattr(bnb.optim, name))
    num_parameters = sum(each.numel() for group in optimizer.param_groups for each in group["params"])
    print(name, num_parameters, state_bytes(optimizer))
    del optimizer
report()
