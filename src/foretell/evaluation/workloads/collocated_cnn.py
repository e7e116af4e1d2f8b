"""The CNN jobs of the measured pairs: ImageNet-sized on one random batch that stays on the GPU, or CIFAR-10-sized
through a DataLoader; SGD, cudnn.benchmark, and a gradient scaler with AMP."""

import argparse
from collections.abc import Iterator

import torch
import torchvision
from torch import nn

NUM_STEPS = 5
LARGE, SMALL = 224, 32


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """In memory, as CIFAR-10 is; they are not augmented."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, SMALL, SMALL), 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--small", action="store_true", help="images of 32 x 32")
    options = parser.parse_args()

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.get_model(options.model, num_classes=10 if options.small else 1000)
    if options.small:
        keep_resolution(model)
    model = model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", enabled=options.amp)
    loss = nn.CrossEntropyLoss().cuda()
    for images, labels in batches(options.batch_size, is_small=options.small):
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=options.amp):
            value = loss(model(images.cuda()), labels.cuda())
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()


def keep_resolution(model: nn.Module) -> None:
    """As variants of ImageNet models for small images do."""
    if isinstance(model, torchvision.models.ResNet):
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    else:
        first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        first.stride = (1, 1)


def batches(size: int, *, is_small: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if is_small:
        yield from torch.utils.data.DataLoader(Images(NUM_STEPS * size), size)
        return
    images, labels = torch.randn(size, 3, LARGE, LARGE).cuda(), torch.randint(0, 1000, (size,)).cuda()
    for _ in range(NUM_STEPS):
        yield images, labels


if __name__ == "__main__":
    main()
