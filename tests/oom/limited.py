"""Allows itself a part of the GPU only."""

import sys

import torch

torch.cuda.set_per_process_memory_fraction(float(sys.argv[1]))
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    model(torch.randn(16384, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
