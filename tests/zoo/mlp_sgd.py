"""An MLP trained with plain SGD: no optimizer state."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
