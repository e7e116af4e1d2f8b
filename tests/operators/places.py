"""Sorting, counting, gathering, masks."""

import torch
import torch.nn.functional as F
from common import DEVICE, Lambda, randn, train
from torch import Tensor, nn

train(
    nn.Sequential(nn.Embedding(30_000, 256), nn.Linear(256, 256)),
    lambda: torch.randint(0, 30_000, (32, 256), device=DEVICE),
)
train(
    nn.Sequential(nn.Embedding(200, 64, padding_idx=0, max_norm=1.0), nn.Linear(64, 64)),
    lambda: torch.randint(0, 200, (16, 256), device=DEVICE),
)


def tied(words: nn.Embedding, tokens: Tensor) -> Tensor:
    return F.cross_entropy((words(tokens) @ words.weight.mT).flatten(0, 1), tokens.flatten())


train(Lambda(tied, nn.Embedding(5000, 128)), lambda: torch.randint(0, 5000, (8, 128), device=DEVICE), lambda loss: loss)


def sorted_rows(linear: nn.Linear, x: Tensor) -> Tensor:
    y = linear(x)
    long = y.flatten().sort()[0].sum() + y.view(-1, 8192).sort(-1)[0].sum()
    return y.sort(-1)[0].sum() + long + y.cumsum(0).sum() + y.median(-1)[0].sum() + y.kthvalue(3)[0].sum()


train(Lambda(sorted_rows, nn.Linear(512, 512)), lambda: randn(2048, 512), lambda loss: loss)


def scattered(linear: nn.Linear, x: Tensor) -> Tensor:
    y = linear(x)
    places = torch.arange(x.size(0), device=DEVICE) % 100
    table = torch.zeros(100, 128, device=DEVICE)
    added = table.index_add(0, places, y) + table.scatter_add(0, places[:, None].expand(-1, 128), y)
    put = table.index_put((places,), y, accumulate=True)
    return added.sum() + put.sum() + torch.gather(y, 1, places[:, None]).sum() + y[places].sum()


train(Lambda(scattered, nn.Linear(64, 128)), lambda: randn(4096, 64), lambda loss: loss)


def masked(linear: nn.Linear, x: Tensor) -> Tensor:
    y = linear(x)
    mask = torch.arange(x.size(0), device=DEVICE) < 100
    chosen = torch.where(y > 0, y, -y).mean() + y.masked_fill(mask[:, None], 0).sum()
    return chosen + y.clamp(-1, 1).sum() + y.tril().sum() + y.roll(3, 0).sum() + y.flip(0).sum()


train(Lambda(masked, nn.Linear(64, 128)), lambda: randn(512, 64), lambda loss: loss)
x = randn(256, 256, requires_grad=True)
x.masked_select(torch.ones(256, 256, dtype=torch.bool, device=DEVICE)).sum().backward()
torch.rand(64, 2000, device=DEVICE).multinomial(1)
torch.rand(64, 2000, device=DEVICE).multinomial(100, replacement=True)
F.one_hot(torch.arange(1000, device=DEVICE) % 10)
