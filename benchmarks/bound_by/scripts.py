"""Small training scripts, each made so that one thing holds it up: `python scripts.py NAME`.

The name begins with what that is: the GPU computes for long (gpu), the host issues many short kernels or works itself
(host), or batches take long to load (loader). Nothing here is close to a border: on any card and CPU of today, the
thing takes several times as long as the others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

STEPS = 4
SCRIPTS: dict[str, Callable[[], None]] = {}


def script(call: Callable[[], None]) -> Callable[[], None]:
    SCRIPTS[call.__name__] = call
    return call


def train(
    model: nn.Module, *shape: int, steps: int = STEPS, dtype: torch.dtype | None = None, foreach: bool | None = None,
    tokens: int = 0,
) -> None:  # fmt: skip
    """On the same batch again and again, which is on the GPU."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    x = torch.randint(tokens, shape, device="cuda") if tokens else torch.randn(shape, device="cuda")
    for _ in range(steps):
        with torch.autocast("cuda", dtype=dtype or torch.float16, enabled=dtype is not None):
            output = model(x)
            output = output[0] if isinstance(output, tuple) else output
            loss = output.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_on(loader: DataLoader[torch.Tensor], model: nn.Module) -> None:
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in loader:
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def mlp(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))


def convolutions(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers)


def transformer(width: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


# --- the GPU ----------------------------------------------------------------------------------------------------------


@script
def gpu_large_products() -> None:
    train(mlp(4096, 4), 8192, 4096)


@script
def gpu_products_in_half_precision() -> None:
    train(mlp(8192, 4), 16384, 8192, dtype=torch.bfloat16)


@script
def gpu_convolutions() -> None:
    train(convolutions(128, 6), 64, 3, 128, 128)


@script
def gpu_convolutions_channels_last() -> None:
    train(convolutions(128, 6).to(memory_format=torch.channels_last), 64, 3, 128, 128, dtype=torch.float16)


@script
def gpu_transformer() -> None:
    train(transformer(1024, 4), 32, 512, 1024)


@script
def gpu_elementwise() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(6):
                x = torch.sin(x * self.scale)
            return x

    train(Chain(), 1 << 27)


@script
def gpu_recurrent() -> None:
    train(nn.LSTM(2048, 2048, 4, batch_first=True), 256, 128, 2048)


@script
def gpu_embedding() -> None:
    train(nn.Sequential(nn.Embedding(50_000, 1024), nn.Linear(1024, 1024)), 256, 1024, tokens=50_000)


@script
def gpu_and_a_fast_loader() -> None:
    data = torch.randn(64, 3, 96, 96)
    train_on(DataLoader(data, batch_size=16), convolutions(256, 8))


@script
def gpu_and_a_loss_that_is_read() -> None:
    model = mlp(4096, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(8192, 4096, device="cuda")
    for _ in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


# --- the host ---------------------------------------------------------------------------------------------------------


@script
def host_small_mlp() -> None:
    train(mlp(64, 60), 32, 64)


@script
def host_one_parameter_at_a_time() -> None:
    train(mlp(128, 80), 16, 128, foreach=False)


@script
def host_small_convolutions() -> None:
    train(convolutions(8, 40), 2, 3, 16, 16)


@script
def host_small_transformer() -> None:
    train(transformer(64, 12), 2, 16, 64)


@script
def host_loop_of_a_cell() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.zeros(x.shape[0], 32, device=x.device)
            for at in range(x.shape[1]):
                h = self.cell(x[:, at], h)
            return h

    train(Loop(), 16, 60, 32)


@script
def host_reads_after_each_layer() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(50))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).relu()
                x.sum().item()
            return x

    train(Reads(), 16, 64)


@script
def host_works_itself() -> None:
    class Sorts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sorted(hash(str(each)) for each in range(100_000))
            return self.layer(x)

    train(Sorts(), 16, 64)


# --- the loader -------------------------------------------------------------------------------------------------------


class Slow(Dataset[torch.Tensor]):
    """Each sample takes its time."""

    def __init__(self, load: Callable[[], None], size: int = 32) -> None:
        self._load, self._size = load, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int) -> torch.Tensor:
        self._load()
        return torch.full((64,), float(at))


def computes() -> None:
    sum(number * number for number in range(60_000))


def transforms() -> None:
    image = torch.rand(3, 256, 256)
    for _ in range(4):
        image = nn.functional.interpolate(image[None], size=(224, 224), mode="bilinear")[0]


def waits() -> None:
    time.sleep(0.004)


@script
def loader_computes() -> None:
    train_on(DataLoader(Slow(computes), batch_size=8), mlp(64, 2))


@script
def loader_transforms() -> None:
    train_on(DataLoader(Slow(transforms), batch_size=8), mlp(64, 2))


@script
def loader_waits_for_a_disk() -> None:
    train_on(DataLoader(Slow(waits), batch_size=8), mlp(64, 2))


@script
def loader_collates() -> None:
    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        for _ in range(8):
            computes()
        return torch.stack(samples)

    train_on(DataLoader(Slow(lambda: None), batch_size=8, collate_fn=collate), mlp(64, 2))


@script
def loader_of_a_stream() -> None:
    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for at in range(32):
                computes()
                yield torch.full((64,), float(at))

    train_on(DataLoader(Stream(), batch_size=8), mlp(64, 2))


@script
def loader_with_workers() -> None:
    def heavy() -> None:
        for _ in range(4):
            computes()

    train_on(DataLoader(Slow(heavy, size=48), batch_size=8, num_workers=2), mlp(64, 2))


@script
def loader_before_a_larger_model() -> None:
    def heavy() -> None:
        for _ in range(3):
            computes()

    train_on(DataLoader(Slow(heavy), batch_size=8), nn.Sequential(nn.Linear(64, 512), *mlp(512, 4)))


if __name__ == "__main__":
    SCRIPTS[sys.argv[1]]()
