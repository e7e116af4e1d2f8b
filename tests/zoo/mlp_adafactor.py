"""An MLP trained with Adafactor: factored state."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2))
