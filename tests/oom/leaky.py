"""Keeps the loss of every step, with its graph."""

import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for batch in DataLoader(torch.zeros(4000, 1024), batch_size=20):
    output = model(batch.cuda().repeat(200, 1))
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(output)
