"""A recommender: an EmbeddingBag over ragged histories and a large embedding table."""

import torch
from common import STEPS, report, setup
from torch import nn


class Recommender(nn.Module):
    def __init__(self, items: int = 50_000, width: int = 32) -> None:
        super().__init__()
        self.history = nn.EmbeddingBag(items, width, mode="mean")
        self.item = nn.Embedding(items, width)
        self.head = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, history: torch.Tensor, offsets: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.history(history, offsets), self.item(item)], dim=1)).squeeze(1)


def main() -> None:
    device = setup(__doc__)
    model = Recommender().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for step in range(STEPS):
        lengths = torch.tensor([3, 1 + step, 7, 2] * 16)
        history = torch.randint(50_000, (int(lengths.sum()),))
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
        items, clicked = torch.randint(50_000, (64,)), torch.randint(2, (64,)).float()
        prediction = model(history.to(device), offsets.to(device), items.to(device))
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(prediction, clicked.to(device)).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
