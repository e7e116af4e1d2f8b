"""Compares pairs of MNIST digits with a shared ResNet-18, as siamese_network/main.py of pytorch/examples does."""

import random

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, models


class Pairs(torch.utils.data.Dataset):
    def __init__(self, is_train):
        self.images = datasets.MNIST("mnist", train=is_train, download=True)
        self.of_label = {label: torch.where(self.images.targets == label)[0].tolist() for label in range(10)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, at):
        label = int(self.images.targets[at])
        other = label if at % 2 else random.choice([each for each in range(10) if each != label])
        pair = (self.images.data[at], self.images.data[random.choice(self.of_label[other])])
        return *(each.float().unsqueeze(0) / 255 for each in pair), torch.tensor(float(at % 2))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        resnet = models.resnet18(weights=None)
        resnet.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.resnet = nn.Sequential(*list(resnet.children())[:-1])
        self.fc = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(inplace=True), nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, first, second):
        features = [self.resnet(each).view(each.size(0), -1) for each in (first, second)]
        return self.fc(torch.cat(features, 1))


device = torch.accelerator.current_accelerator()
training = torch.utils.data.DataLoader(Pairs(True), batch_size=64, shuffle=True)
testing = torch.utils.data.DataLoader(Pairs(False), batch_size=1000)
model = Siamese().to(device)
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
criterion = nn.BCELoss()
for epoch in range(1, 2):
    model.train()
    for first, second, target in training:
        first, second, target = first.to(device), second.to(device), target.to(device)
        optimizer.zero_grad()
        loss = criterion(model(first, second).squeeze(), target)
        loss.backward()
        optimizer.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for first, second, target in testing:
            output = model(first.to(device), second.to(device)).squeeze()
            correct += torch.where(output > 0.5, 1, 0).eq(target.to(device)).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.4f}, {correct} correct")
    scheduler.step()
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
