import torch
import torch.nn.functional as F
from common import DEVICE, Lambda, one_by_one, randn, train
from torch import nn

up = [nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.Tanh()]
train(nn.Sequential(*up), lambda: randn(8, 3, 64, 64))
volume = [nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.MaxPool3d(2), nn.ConvTranspose3d(16, 8, 2, 2)]
train(nn.Sequential(*volume), lambda: randn(4, 3, 16, 32, 32))
pads = [nn.ReflectionPad2d(3), nn.Conv2d(3, 16, 7), nn.ReplicationPad2d(2), nn.CircularPad2d(1), nn.PixelShuffle(2)]
train(nn.Sequential(*pads), lambda: randn(8, 3, 64, 64))
last = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, groups=32), nn.MaxPool2d(2),
    nn.Conv2d(64, 32, 1),
)  # fmt: skip
last.to(memory_format=torch.channels_last)


def in_half(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(batch.to(memory_format=torch.channels_last))


train(Lambda(in_half, last), lambda: randn(8, 3, 64, 64))
unpool = nn.MaxUnpool2d(2)
train(
    Lambda(lambda conv, x: unpool(*F.max_pool2d(conv(x), 2, return_indices=True)), nn.Conv2d(3, 16, 3, padding=1)),
    lambda: randn(8, 3, 64, 64),
)
x = torch.rand(64, 32, 32, 32, device=DEVICE, requires_grad=True)
grid = torch.rand(64, 32, 32, 2, device=DEVICE, requires_grad=True)
one_by_one(
    x,
    lambda: F.fold(F.unfold(x, 3, padding=1), (32, 32), 3, padding=1),
    lambda: F.interpolate(x, scale_factor=2, mode="nearest"),
    lambda: F.interpolate(x, size=(50, 50), mode="bicubic"),
    lambda: F.avg_pool2d(x, 3, 2),
    lambda: F.max_pool2d(x, 3, 2),
    lambda: F.adaptive_avg_pool2d(x, 5),
    lambda: F.adaptive_max_pool2d(x, 5),
    lambda: F.lp_pool2d(x, 2, 2),
    lambda: F.grid_sample(x, grid, align_corners=False),
    lambda: F.local_response_norm(x, 5),
)
