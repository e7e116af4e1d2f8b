"""A hand-written loop under Hugging Face accelerate."""

import torch
from accelerate import Accelerator
from common import report, setup
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    device = setup(__doc__)
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(96, 64), torch.randint(4, (96,))), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    report()


if __name__ == "__main__":
    main()
