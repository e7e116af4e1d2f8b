"""LBFGS, which calls a closure several times a step. Negative tolerances: no value of a float ends it early."""

import torch
from common import report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.01, max_iter=3, history_size=4, tolerance_grad=-1.0, tolerance_change=-1.0
    )
    inputs, targets = torch.randn(64, 32).to(device), torch.randn(64, 1).to(device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    report()


if __name__ == "__main__":
    main()
