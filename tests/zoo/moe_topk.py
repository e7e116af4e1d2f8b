"""A mixture of experts routed by a hash of the token: integers, which foretell knows, decide each expert's batch."""

import torch
from common import report, setup, token_batches
from torch import nn
from torch.nn import functional as F


class MixtureOfExperts(nn.Module):
    def __init__(self, width: int, experts: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        scores = (tokens[:, None] * 7 + torch.arange(len(self.experts), device=x.device) * 11) % 13
        chosen = scores.topk(self.k, dim=1).indices
        weights = self.gate(x).gather(1, chosen).softmax(dim=1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            if rows.numel() == 0:
                continue
            result.index_add_(0, rows, expert(x[rows]) * weights[rows, slots].unsqueeze(1))
        return result


def main() -> None:
    device = setup(__doc__)
    embedding, mixture, head = nn.Embedding(128, 32), MixtureOfExperts(32, experts=4, k=2), nn.Linear(32, 128)
    model = nn.ModuleList([embedding, mixture, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens, targets in token_batches(device, batch_size=4, length=24):
        tokens, targets = tokens.flatten(), targets.flatten()
        x = embedding(tokens)
        x = x + mixture(x, tokens)
        optimizer.zero_grad()
        F.cross_entropy(head(x), targets).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
