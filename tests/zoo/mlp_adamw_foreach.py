"""An MLP trained with AdamW over all parameters at once."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True))
