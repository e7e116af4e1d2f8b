"""Saves model, optimizer and scheduler, loads them back into fresh ones, and goes on."""

import gc
import tempfile
from pathlib import Path

import torch
from common import report, setup
from torch import nn


def build(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    device: torch.device,
) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(16, 64).to(device)).square().mean().backward()
        optimizer.step()
        schedule.step()


def main() -> None:
    device = setup(__doc__)
    model, optimizer, schedule = build(device)
    train(model, optimizer, schedule, device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "step": 2,
            },
            path,
        )
        saved = torch.load(path, map_location=device, weights_only=True)
    model, optimizer, schedule = build(device)
    gc.collect()  # the first optimizer and its schedule hold each other
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    assert saved["step"] == 2
    train(model, optimizer, schedule, device)
    report()


if __name__ == "__main__":
    main()
