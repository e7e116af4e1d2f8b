"""An MLP trained with Adam with AMSGrad: three state tensors per parameter."""

import torch
from common import train_mlp

if __name__ == "__main__":
    train_mlp(lambda parameters: torch.optim.Adam(parameters, lr=1e-3, amsgrad=True))
