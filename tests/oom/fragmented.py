"""Batches grow, and a result of each that stays lies in the memory of its batch: gaps that no later one fits into."""

import torch

results = []
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(16):
    num_rows = 12 * 1024 + 512 * step
    x = torch.randn(num_rows, 1024, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del x
    results.append(torch.empty(num_rows, 532, device="cuda"))
