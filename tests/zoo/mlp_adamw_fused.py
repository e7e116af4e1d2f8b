"""An MLP trained with AdamW in one fused kernel."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True))
