"""Trains and evaluates a small CNN on MNIST, as mnist/main.py of pytorch/examples does."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=14)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def train(epoch):
    model.train()
    for number, (images, labels) in enumerate(train_loader):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        if number % 10 == 0:
            print(f"epoch {epoch}, batch {number} of {len(train_loader)}: loss {loss.item():.6f}")


def test():
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in test_loader:
            images, labels = images.to(device), labels.to(device)
            output = model(images)
            loss += F.nll_loss(output, labels, reduction="sum").item()
            correct += output.argmax(dim=1, keepdim=True).eq(labels.view(-1, 1)).sum().item()
    print(f"test: loss {loss / len(test_loader.dataset):.4f}, {correct} of {len(test_loader.dataset)} correct")


device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
options = {"num_workers": 1, "persistent_workers": True, "pin_memory": True, "shuffle": True}
train_loader = torch.utils.data.DataLoader(
    datasets.MNIST("mnist", train=True, download=True, transform=transform), batch_size=64, **options
)
test_loader = torch.utils.data.DataLoader(
    datasets.MNIST("mnist", train=False, transform=transform), batch_size=1000, **options
)
model = Net().to(device)
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(1, args.epochs + 1):
    train(epoch)
    test()
    scheduler.step()
torch.save(model.state_dict(), "mnist_cnn.pt")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
