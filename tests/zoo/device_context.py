"""Says `with torch.device("cuda")` and `.cuda()` instead of `.to(device)`; parameters are born on the GPU."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    with device:
        model = nn.Sequential(nn.Linear(128, 512), nn.Softplus(), nn.Linear(512, 4))
        scale = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.Adamax([*model.parameters(), scale])
    for _ in range(STEPS):
        inputs = torch.randn(32, 128)
        inputs = inputs.cuda() if device.type == "cuda" else inputs
        optimizer.zero_grad()
        (model(inputs) * scale).logsumexp(dim=1).mean().backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
