"""Learns to enlarge images, as super_resolution/main.py of pytorch/examples does: a larger batch in evaluation."""

from math import log10

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

FACTOR, SIZE = 3, 240
device = torch.accelerator.current_accelerator()


class Enlarge(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1, self.conv2 = nn.Conv2d(1, 64, 5, 1, 2), nn.Conv2d(64, 64, 3, 1, 1)
        self.conv3, self.conv4 = nn.Conv2d(64, 32, 3, 1, 1), nn.Conv2d(32, FACTOR**2, 3, 1, 1)
        self.shuffle = nn.PixelShuffle(FACTOR)
        for layer in (self.conv1, self.conv2, self.conv3):
            nn.init.orthogonal_(layer.weight, nn.init.calculate_gain("relu"))

    def forward(self, x):
        for layer in (self.conv1, self.conv2, self.conv3):
            x = self.relu(layer(x))
        return self.shuffle(self.conv4(x))


class Pairs(torch.utils.data.Dataset):
    def __init__(self, part):
        self.images = datasets.ImageFolder(f"image_folder/{part}", transforms.Grayscale())
        self.large = transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()])
        self.small = transforms.Compose([transforms.Resize((SIZE // FACTOR, SIZE // FACTOR)), transforms.ToTensor()])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, at):
        picture = self.images[at][0]
        return self.small(picture), self.large(picture)


training = DataLoader(Pairs("train"), num_workers=2, batch_size=4, shuffle=True)
testing = DataLoader(Pairs("val"), num_workers=2, batch_size=10)
model, criterion = Enlarge().to(device), nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 2):
    for small, large in training:
        optimizer.zero_grad()
        loss = criterion(model(small.to(device)), large.to(device))
        loss.backward()
        optimizer.step()
    ratio = 0.0
    with torch.no_grad():
        for small, large in testing:
            ratio += 10 * log10(1 / criterion(model(small.to(device)), large.to(device)).item())
    print(f"epoch {epoch}: loss {loss.item():.4f}, {ratio / len(testing):.4f} dB")
    torch.save(model, f"model_epoch_{epoch}.pth")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
