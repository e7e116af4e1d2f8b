"""Trains a small model on batches of the given number of samples."""

import sys

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    model(torch.randn(int(sys.argv[1]), 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
