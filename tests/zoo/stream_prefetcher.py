"""The next batch is copied on a stream of its own while this one trains; record_stream keeps its memory."""

from collections.abc import Iterator

import torch
from common import image_batches, report, setup
from torch import nn


def prefetch(device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
    stream = torch.cuda.Stream() if device.type == "cuda" else None
    ready: tuple[torch.Tensor, ...] | None = None
    for batch in image_batches(torch.device("cpu"), batch_size=32):
        with torch.cuda.stream(stream):  # does nothing without a stream
            loading = tuple(pinned(tensor, device).to(device, non_blocking=True) for tensor in batch)
        if ready is not None:
            yield ready
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)
            for tensor in loading:
                tensor.record_stream(torch.cuda.current_stream())
        ready = loading
    assert ready is not None
    yield ready


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in prefetch(device):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
