"""An MLP trained with Adagrad: state made when the optimizer is."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2))
