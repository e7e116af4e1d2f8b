"""A script the way people write them: argparse, a Trainer class, a main that returns an exit code."""

import argparse
import sys

import torch
from common import report, setup_device
from torch import nn


class Trainer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = setup_device(arguments.device)
        self.arguments = arguments
        self.model = nn.Sequential(nn.Linear(64, arguments.width), nn.ReLU(), nn.Linear(arguments.width, 4)).to(
            self.device
        )
        self.optimizer = getattr(torch.optim, arguments.optimizer)(self.model.parameters(), lr=arguments.lr)

    def fit(self) -> None:
        for step in range(self.arguments.steps):
            loss = self.step(torch.randn(self.arguments.batch_size, 64), torch.randint(4, (self.arguments.batch_size,)))
            if step % self.arguments.log_every == 0:
                print(f"step {step} loss {loss.item():.3f}")

    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs.to(self.device)), labels.to(self.device))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--optimizer", default="Adam")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--log-every", type=int, default=2)
    Trainer(parser.parse_args(argv)).fit()
    report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
