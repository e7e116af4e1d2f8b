"""An MLP trained with SGD with Nesterov momentum: one state tensor per parameter."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4))
