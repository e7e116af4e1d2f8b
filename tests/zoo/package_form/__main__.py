"""Relative imports, which only `python -m` makes possible."""

import torch
from common import STEPS, report, setup

from .network import build


def main() -> None:
    device = setup(__doc__)
    model = build(256).to(device)
    optimizer = torch.optim.NAdam(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 32).to(device)).square().sum().backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
