"""A convolutional net of a family (uniform, pyramid, residual, dense, ...), trained on random images. One forward with
two images comes first, as in the measured runs: a summary of the model. As there, two workers make the images, and the
loss is read back in each step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MAX_CHANNELS = 2048
GROWTH_RATE = 32
SMALLEST_MAP = 7
ACTIVATIONS = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU, "selu": nn.SELU, "tanh": nn.Tanh,
    "softplus": nn.Softplus, "swish": nn.SiLU, "mish": nn.Mish, "gelu": nn.GELU,
}  # fmt: skip


def block(options: argparse.Namespace, channels: int, out: int, **convolution: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(channels, out, **{"kernel_size": 3, "padding": 1, **convolution})]
    if options.batch_norm:
        layers.append(nn.BatchNorm2d(out))
    layers.append(ACTIVATIONS[options.activation]())
    if options.dropout is not None:
        layers.append(nn.Dropout(options.dropout))
    return nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, options: argparse.Namespace, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = block(options, channels, out, stride=stride)
        self.second = block(options, out, out)
        self.shortcut: nn.Module = nn.Identity()
        if channels != out or stride != 1:
            norm = nn.BatchNorm2d(out) if options.batch_norm else nn.Identity()
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, kernel_size=1, stride=stride), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = self.shortcut(x)
        x = self.first(x)
        x = self.second(x)
        return x + residual


class Dense(nn.Module):
    def __init__(self, options: argparse.Namespace, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block(options, channels + i * GROWTH_RATE, GROWTH_RATE) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            new = layer(torch.cat(features, 1))
            features.append(new)
        return torch.cat(features, 1)


class Transition(nn.Module):
    def __init__(self, options: argparse.Namespace, channels: int) -> None:
        super().__init__()
        plain = argparse.Namespace(batch_norm=options.batch_norm, activation="relu", dropout=None)
        self.convolution = block(plain, channels, channels // 2, kernel_size=1, padding=0)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        return self.pool(x) if min(x.shape[2:]) > 1 else x


def num_channels(options: argparse.Namespace, i: int) -> int:
    base, depth, ratio = options.base_filters, options.depth, MAX_CHANNELS / options.base_filters
    up = depth // 2
    if options.architecture == "uniform":
        return base
    if options.architecture == "bottleneck":
        growth = 2.0 if depth <= 2 else ratio ** (1 / (depth - 1))
        return 2 * base if i == 0 else min(int(base * growth ** (i - 1)), MAX_CHANNELS)
    if options.architecture == "hourglass":
        if i < up:
            return min(int(base * (ratio ** (1 / up)) ** i), MAX_CHANNELS)
        return max(int(base * (ratio ** (1 / (depth - up))) ** (depth - i - 1)), base)
    growth = ratio ** (1 / (2 * depth if options.architecture == "gradual" else depth))
    return min(int(base * growth**i), MAX_CHANNELS)


def residual_blocks(options: argparse.Namespace) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    channels, size = options.input_channels, options.image_size
    for i in range(options.depth // 2):
        out = num_channels(options, i)
        stride = 2 if i % 2 == 1 and size > SMALLEST_MAP else 1
        blocks.append(Residual(options, channels, out, stride))
        channels, size = out, size // stride
        if size <= SMALLEST_MAP:
            break
    return blocks, channels


def dense_blocks(options: argparse.Namespace) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    channels, count = options.input_channels, options.depth // 4
    for i in range(count):
        blocks.append(Dense(options, channels))
        channels += 4 * GROWTH_RATE
        if i % options.pooling_frequency == 0 and i != count - 1:
            blocks.append(Transition(options, channels))
            channels //= 2
    return blocks, channels


def plain_blocks(options: argparse.Namespace) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    channels = options.input_channels
    for i in range(options.depth):
        out = num_channels(options, i)
        blocks.append(block(options, channels, out))
        channels = out
    return blocks, channels


class Net(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        make = {"residual": residual_blocks, "dense": dense_blocks}.get(options.architecture, plain_blocks)
        blocks, channels = make(options)
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, options.num_classes)
        self.last = nn.Softmax(dim=1) if options.num_classes > 1 else nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.blocks:
            x = each(x)
        x = self.pool(x)
        x = torch.flatten(x, 1)
        x = self.head(x)
        return self.last(x)


class Images(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, image: tuple[int, int, int], num_classes: int, num_images: int) -> None:
        self.image, self.num_classes, self.num_images = image, num_classes, num_images

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(*self.image), int(torch.randint(0, self.num_classes, (1,)).item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("input-channels", "num-classes", "depth", "base-filters", "batch-size", "image-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    families = ["uniform", "gradual", "pyramid", "bottleneck", "hourglass", "residual", "dense"]
    parser.add_argument("--architecture", choices=families, required=True)
    parser.add_argument("--pooling-frequency", type=int, default=5, help="dense: blocks between two transitions")
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="relu")
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    image = (options.input_channels, options.image_size, options.image_size)
    model = Net(options).cuda()
    model(torch.rand(2, *image).cuda())

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    epoch_loss = 0.0
    images = Images(image, options.num_classes, options.steps * options.batch_size)
    loader = DataLoader(images, batch_size=options.batch_size, shuffle=True, num_workers=2, pin_memory=True)
    for inputs, labels in loader:
        inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()


if __name__ == "__main__":
    main()
