"""Halves the batch until it fits, as many trainers do: 32 and 16 GiB of inputs do not, 8 do."""

import torch
from common import STEPS, report, setup
from torch import nn

CARD = 12 << 30


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int, device: torch.device) -> None:
    if device.type == "cpu" and batch_size * 4096 * 4 > CARD:
        raise torch.OutOfMemoryError("as much as the card would not have")
    inputs = torch.empty(batch_size, 4096, device=device)[:8]
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()


def main() -> None:
    device = setup(__doc__)
    model = nn.Linear(4096, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch_size = 2 << 20  # 32 GiB of inputs
    done = 0
    while done < STEPS:
        try:
            step(model, optimizer, batch_size, device)
            done += 1
        except torch.OutOfMemoryError:
            batch_size //= 2
            if device.type == "cuda":
                torch.cuda.empty_cache()
            print(f"out of memory; trying {batch_size}")
    report()


if __name__ == "__main__":
    main()
