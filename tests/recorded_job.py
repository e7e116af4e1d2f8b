"""Small training jobs: one on a card (`recorded_job.py gpt2`), or all recorded on the CPU (`recorded_job.py FOLDER`).

Run as a script by test_import.py: the same code is what foretell runs on the virtual GPU and what the profiler sees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

Job = tuple[nn.Module, Callable[[], torch.Tensor], Callable[[nn.Module, torch.Tensor], torch.Tensor], str]
STEPS = 3


def mlp(optimizer: str) -> Job:
    layers = (nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 999))
    return (
        nn.Sequential(*layers),
        lambda: torch.randn(256, 1024),
        lambda model, x: model(x).logsumexp(1).sum(),
        optimizer,
    )


def gpt2() -> Job:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=8000, n_positions=128))
    return model, lambda: torch.randint(0, 8000, (4, 128)), lambda model, ids: model(ids, labels=ids).loss, "AdamW"


def resnet18() -> Job:
    from torchvision.models import resnet18 as build

    return build(), lambda: torch.randn(4, 3, 64, 64), lambda model, images: model(images).sum(), "AdamW"


def recurrent(name: str) -> Job:
    """By oneDNN (LSTM) or step by step (GRU, with dropout)."""
    if name == "LSTM":
        model: nn.Module = nn.LSTM(64, 256, 2, batch_first=True)
    else:
        model = nn.GRU(64, 128, 2, dropout=0.1, bidirectional=True)
    return model, lambda: torch.randn(32, 40, 64), lambda model, x: model(x)[0].square().mean(), "AdamW"


JOBS: dict[str, Callable[[], Job]] = {
    "mlp-sgd": lambda: mlp("SGD"),
    "mlp-adam": lambda: mlp("Adam"),
    "gpt2": gpt2,
    "resnet18": resnet18,
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
}


def train(name: str, device: str, on_built: Callable[[], object] = lambda: None) -> None:
    model, batch, loss_of, optimizer_name = JOBS[name]()
    model.to(device).train()
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
    on_built()
    for _ in range(STEPS):
        x = batch().to(device)
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()


def record(name: str, path: Path) -> None:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=cpu, profile_memory=True, record_shapes=True)
    train(name, "cpu", profiler.start)
    profiler.stop()
    profiler.export_chrome_trace(str(path))


if __name__ == "__main__":
    if sys.argv[1] in JOBS:
        train(sys.argv[1], "cuda")
    else:
        for job in JOBS:
            record(job, Path(sys.argv[1]) / f"{job}.json.gz")
