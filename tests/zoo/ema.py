"""An exponential moving average of the weights, and a learning-rate schedule."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)
    for _ in range(STEPS):
        inputs, labels = torch.randn(32, 256).to(device), torch.randint(10, (32,)).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    average.eval()
    with torch.no_grad():
        average(torch.randn(32, 256).to(device))
    report()


if __name__ == "__main__":
    main()
