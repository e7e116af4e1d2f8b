"""An evaluation with a larger batch after every epoch; accuracy is counted on the GPU and read back."""

import torch
from common import report, setup
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    correct = torch.zeros((), device=device)
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).float().sum()
    return correct.item() / 64


def main() -> None:
    device = setup(__doc__)
    data = TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    train, validation = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=64)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Dropout2d(0.1),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        model.train()
        for images, labels in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {evaluate(model, validation, device):.2f}")
    report()


if __name__ == "__main__":
    main()
