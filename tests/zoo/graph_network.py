"""A graph network: messages along edges, summed at their targets with index_add."""

import torch
from common import STEPS, report, setup
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        messages = torch.relu(self.message(torch.cat([x[source], x[target]], dim=1)))
        received = torch.zeros_like(x).index_add(0, target, messages)
        return torch.relu(self.update(torch.cat([x, received], dim=1)))


def main() -> None:
    device = setup(__doc__)
    layers, head = nn.ModuleList(Layer(32) for _ in range(3)).to(device), nn.Linear(32, 3).to(device)
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-2)
    x, edges, labels = (
        torch.randn(100, 32).to(device),
        torch.randint(100, (2, 400)).to(device),
        torch.randint(3, (100,)).to(device),
    )
    edges = edges[:, edges[0] != edges[1]]  # no loops: a boolean mask decides the shape
    for _ in range(STEPS):
        hidden = x
        for layer in layers:
            hidden = layer(hidden, edges)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(hidden), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
