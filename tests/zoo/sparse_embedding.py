"""An embedding with sparse gradients, and a sparse matrix times a dense one: what a recommender on a graph does."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    items = nn.Embedding(500, 32, sparse=True).to(device)
    head = nn.Linear(32, 1).to(device)
    optimizers = [torch.optim.SparseAdam(items.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)]
    edges = torch.stack([torch.arange(64), (torch.arange(64) * 7) % 64])
    graph = torch.sparse_coo_tensor(edges, torch.ones(64), (64, 64)).coalesce().to(device)
    for _ in range(STEPS):
        nodes = items(torch.randperm(500)[:64].to(device))
        loss = head(torch.sparse.mm(graph, nodes)).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    report()


if __name__ == "__main__":
    main()
