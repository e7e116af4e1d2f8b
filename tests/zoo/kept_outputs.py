"""The classic leak: outputs with their graphs are kept in a list, so memory grows at every step."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, outputs = [], []
    for _ in range(2 * STEPS):
        output = model(torch.randn(256, 256).to(device))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        outputs.append(output)
    report()


if __name__ == "__main__":
    main()
