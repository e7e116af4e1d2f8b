"""Convolutions whose algorithms cuDNN chooses by trying them, with the workspace that each needs."""

import torch

torch.backends.cudnn.benchmark = True
model = torch.nn.Sequential(*[torch.nn.Conv2d(128, 128, 3, padding=1) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(16, 128, 128, 128, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
