"""The samples of a data set differ in length; the longest is in its 30th batch."""

import torch
from torch.utils.data import DataLoader

lengths = [1024] * 120
lengths[4 * 29] = 16 * 1024


def padded(batch: list[int]) -> torch.Tensor:
    return torch.zeros(len(batch), max(batch), 1024)


model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(lengths, batch_size=4, collate_fn=padded):
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
