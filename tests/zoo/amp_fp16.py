"""Mixed precision in float16 with a GradScaler."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=128.0)  # small: no step is skipped, with values or without
    for _ in range(STEPS):
        inputs, labels = torch.randn(64, 256).to(device), torch.randint(10, (64,)).to(device)
        with torch.autocast(device.type, dtype=torch.float16):
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    report()


if __name__ == "__main__":
    main()
