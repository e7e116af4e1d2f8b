"""Random numbers made on the device: noise, dropout, permutations, samples, a generator and its saved state."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.2), nn.AlphaDropout(0.1), nn.RReLU(), nn.Linear(64, 8)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator(device=device).manual_seed(3)
    data = torch.randn(40, 32, device=device, generator=generator)
    for _ in range(STEPS):
        order = torch.randperm(len(data), device=device)
        assert order.sort().values.tolist() == list(range(len(data)))  # which order it is depends on the device
        for rows in order.split(16):
            batch = data[rows] + 0.1 * torch.randn_like(data[rows])
            labels = torch.randint(8, (len(rows),), device=device)
            keep = torch.rand(len(rows), device=device).argsort()[: len(rows) // 2]
            loss = nn.functional.cross_entropy(model(batch)[keep], labels[keep])
            loss = loss + torch.empty_like(batch).uniform_().bernoulli_().mean() + torch.normal(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = torch.get_rng_state()
        torch.set_rng_state(state)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            torch.poisson(torch.ones(4, device=device))
    report()


if __name__ == "__main__":
    main()
