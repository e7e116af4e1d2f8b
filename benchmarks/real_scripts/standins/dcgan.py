"""Trains a DCGAN on random images, as dcgan/main.py --dataset fake of pytorch/examples does."""

import torch
from torch import nn, optim
from torch.backends import cudnn
from torchvision import datasets, transforms
from torchvision.utils import save_image

cudnn.benchmark = True
device = torch.accelerator.current_accelerator()
BATCH, LATENT, WIDTH = 64, 100, 64


def up(before, after, stride=2, padding=1):
    layer = nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False)
    return layer, nn.BatchNorm2d(after), nn.ReLU(True)


def down(before, after):
    return nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)


generator = nn.Sequential(
    *up(LATENT, WIDTH * 8, 1, 0), *up(WIDTH * 8, WIDTH * 4), *up(WIDTH * 4, WIDTH * 2), *up(WIDTH * 2, WIDTH),
    nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh(),
).to(device)  # fmt: skip
critic = nn.Sequential(
    nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), *down(WIDTH, WIDTH * 2),
    *down(WIDTH * 2, WIDTH * 4), *down(WIDTH * 4, WIDTH * 8), nn.Conv2d(WIDTH * 8, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)  # fmt: skip
dataset = datasets.FakeData(image_size=(3, 64, 64), transform=transforms.ToTensor())
loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=2)
criterion = nn.BCELoss()
fixed = torch.randn(BATCH, LATENT, 1, 1, device=device)
of_critic = optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_generator = optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(25):
    for number, (images, _) in enumerate(loader):
        critic.zero_grad()
        images = images.to(device)
        labels = torch.full((images.size(0),), 1.0, device=device)
        error = criterion(critic(images).view(-1), labels)
        error.backward()
        fake = generator(torch.randn(images.size(0), LATENT, 1, 1, device=device))
        labels.fill_(0.0)
        error_of_fake = criterion(critic(fake.detach()).view(-1), labels)
        error_of_fake.backward()
        of_critic.step()
        generator.zero_grad()
        labels.fill_(1.0)
        error_of_generator = criterion(critic(fake).view(-1), labels)
        error_of_generator.backward()
        of_generator.step()
        print(f"[{epoch}][{number}] critic {(error + error_of_fake).item():.4f}, {error_of_generator.item():.4f}")
        if number % 100 == 0:
            save_image(images, "real.png", normalize=True)
            save_image(generator(fixed).detach(), f"fake_{epoch:03d}.png", normalize=True)
    torch.save(generator.state_dict(), f"generator_{epoch}.pth")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
