"""Reads MNIST row by row with an LSTM, as mnist_rnn/main.py of pytorch/examples does."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=28, hidden_size=64, batch_first=True)
        self.norm = nn.BatchNorm1d(64)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images):
        rows, _ = self.rnn(images.reshape(-1, 28, 28))
        x = self.drop1(self.norm(rows[:, -1]))
        return F.log_softmax(self.fc2(self.drop2(F.relu(self.fc1(x)))), dim=1)


device = torch.accelerator.current_accelerator()
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
loaders = [
    torch.utils.data.DataLoader(
        datasets.MNIST("mnist", train=is_train, download=True, transform=transform), batch_size=size, shuffle=True
    )
    for is_train, size in ((True, 64), (False, 1000))
]
model = Net().to(device)
optimizer = optim.Adadelta(model.parameters(), lr=0.1)
for epoch in range(1, 2):
    model.train()
    for images, labels in loaders[0]:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        F.nll_loss(model(images), labels).backward()
        optimizer.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loaders[1]:
            images, labels = images.to(device), labels.to(device)
            correct += model(images).argmax(dim=1).eq(labels).sum().item()
    print(f"epoch {epoch}: {correct} correct")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
