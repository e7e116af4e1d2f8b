import torch
from common import Lambda, randn, train
from torch import Tensor, nn


def reduced(linear: nn.Linear, x: Tensor) -> Tensor:
    y = linear(x)
    moments = y.mean((0, 1)).sum() + y.var(0).sum() + y.std() + y.norm() + torch.var_mean(y, 0)[0].sum()
    largest = y.amax(0).sum() + y.max(1)[0].sum() + y.max() + y.argmax(-1).float().mean() + y.argmax().float()
    counted = (y > 0).sum() + (y > 0).sum(0).float().sum() + y.count_nonzero() + (y > 0).any(0).float().sum()
    wide = y.sum(0, dtype=torch.float64).sum() + y.half().sum(0, dtype=torch.float32).sum() + y.int().sum(0).sum()
    middle = y.median() + y.median(-1)[0].sum() + y.median(0)[0].sum() + y.transpose(0, 2).median(1)[0].sum()
    return middle + y.sum(0).sum() + moments + largest + counted + wide + y.prod(-1).sum() + y.logsumexp(0).sum()


train(Lambda(reduced, nn.Linear(64, 64)), lambda: randn(64, 512, 64), lambda loss: loss)


def products(bilinear: nn.Bilinear, linear: nn.Linear, x: Tensor) -> Tensor:
    y = linear(bilinear(x, x))
    near = torch.cdist(y, x).mean() + nn.functional.pairwise_distance(y, x).mean()
    return near + nn.functional.cosine_similarity(y, x).mean() + torch.einsum("nd,md->nm", y, x).logsumexp(-1).sum()


train(Lambda(products, nn.Bilinear(32, 32, 64), nn.Linear(64, 32)), lambda: randn(256, 32), lambda loss: loss)
