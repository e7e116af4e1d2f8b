"""Every optimizer of torch.optim, each in its looping, foreach, fused and capturable form where it has one."""

import inspect

import torch
from common import STEPS, report, setup
from torch import nn

NEEDS_OTHER_TRAINING = {"LBFGS", "SparseAdam"}  # a closure, sparse gradients: they have workloads of their own
FUSED_ON_EVERY_DEVICE = {"Adam", "AdamW", "SGD"}  # Adagrad's fused form is for the CPU alone in torch 2.6


def variants(device: torch.device) -> list[tuple[type[torch.optim.Optimizer], dict[str, bool]]]:
    found = []
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind) or name in {"Optimizer", *NEEDS_OTHER_TRAINING}:
            continue
        options = inspect.signature(kind).parameters
        found.append((kind, {"foreach": False} if "foreach" in options else {}))
        if "foreach" in options:
            found.append((kind, {"foreach": True}))
        if name in FUSED_ON_EVERY_DEVICE:
            found.append((kind, {"fused": True}))
        if "capturable" in options:
            found.append((kind, {"capturable": device.type == "cuda"}))
    return found


def main() -> None:
    device = setup(__doc__)
    for kind, options in variants(device):
        layers = [nn.Linear(32, 64, bias=False), nn.Tanh(), nn.Linear(64, 4, bias=False)]  # Muon takes matrices only
        model = nn.Sequential(*layers).to(device)
        optimizer = kind(model.parameters(), lr=1e-3, **options)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 32).to(device)).square().mean().backward()
            optimizer.step()
    report()


if __name__ == "__main__":
    main()
