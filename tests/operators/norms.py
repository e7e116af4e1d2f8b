import torch
from common import randn, train
from torch import nn

# Short rows, many of them: sums in parts.
rows = [nn.Linear(64, 64), nn.LayerNorm(64)]
if hasattr(nn, "RMSNorm"):
    rows.append(nn.RMSNorm(64))
train(nn.Sequential(*rows), lambda: randn(70_000, 64))
images = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU(), nn.InstanceNorm2d(32, affine=True), nn.Mish(),
    nn.BatchNorm2d(32), nn.ReLU(inplace=True),
)  # fmt: skip
train(images, lambda: randn(8, 3, 64, 64))
images.eval()
groups = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), nn.GroupNorm(32, 64, affine=False)
)  # fmt: skip
train(groups, lambda: randn(512, 3, 8, 8))
train(groups.to(memory_format=torch.channels_last), lambda: randn(512, 3, 8, 8))
train(images, lambda: randn(8, 3, 64, 64))
weights = nn.utils.parametrizations.weight_norm(nn.Linear(256, 512))
train(nn.Sequential(weights, nn.utils.parametrizations.spectral_norm(nn.Linear(512, 256))), lambda: randn(128, 256))
with torch.no_grad():
    images.half()(randn(4, 3, 32, 32).half())
    groups.half()(randn(512, 3, 8, 8).half())
