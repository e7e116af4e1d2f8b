"""What every workload of the zoo shares: the command line, the seed, the line at its end, the recorder's switch.

A workload is a complete training script, `python tests/zoo/NAME.py [--device cpu|cuda]`, that knows nothing of
foretell. It takes a few steps of a tiny model, and no branch in it depends on the value of a float, because on the
virtual GPU kernels compute nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

STEPS = 4


def setup(description: str | None = None) -> torch.device:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    return setup_device(parser.parse_args().device)


def setup_device(name: str = "auto") -> torch.device:
    torch.manual_seed(0)
    # Python's collector runs once enough objects were made, an observer's among them; then cycles with tensors in them
    # go at another moment each time. Two runs are to be equal to the byte, so workloads that make cycles end them.
    gc.disable()
    if os.environ.get("ZOO_RECORD"):
        import recorder

        recorder.start()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def report() -> None:
    """The truth the test compares foretell with: PyTorch's own counters, read inside the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        print(
            "ZOO "
            + json.dumps(
                {"max_reserved": torch.cuda.max_memory_reserved(), "max_allocated": torch.cuda.max_memory_allocated()}
            ),
            flush=True,
        )


def image_batches(
    device: torch.device, batch_size: int = 8, channels: int = 3, size: int = 32, num_classes: int = 10
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(STEPS):
        images = torch.randn(batch_size, channels, size, size)
        labels = torch.randint(num_classes, (batch_size,))
        yield images.to(device), labels.to(device)


def token_batches(
    device: torch.device, batch_size: int = 4, length: int = 32, vocabulary: int = 128
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(STEPS):
        tokens = torch.randint(vocabulary, (batch_size, length + 1))
        yield tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def train_mlp(make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> None:
    """The same small network for every optimizer: what differs is the optimizer's own memory."""
    device = setup()
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(
        device
    )
    optimizer = make_optimizer(model.parameters())
    for _ in range(STEPS):
        inputs, labels = torch.randn(64, 256).to(device), torch.randint(10, (64,)).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    report()
