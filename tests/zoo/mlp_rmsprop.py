"""An MLP trained with centered RMSprop with momentum."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True, momentum=0.9))
