"""A variational autoencoder of MNIST with samples as images, as vae/main.py of pytorch/examples does."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torchvision import datasets, transforms
from torchvision.utils import save_image


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        hidden = F.relu(self.fc1(x.view(-1, 784)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        deviation = torch.exp(0.5 * log_variance)
        return self.decode(mean + torch.randn_like(deviation) * deviation), mean, log_variance


def loss_of(image, x, mean, log_variance):
    error = F.binary_cross_entropy(image, x.view(-1, 784), reduction="sum")
    return error - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


device = torch.accelerator.current_accelerator()
loaders = [
    torch.utils.data.DataLoader(
        datasets.MNIST("mnist", train=is_train, download=True, transform=transforms.ToTensor()), batch_size=128,
        shuffle=is_train, num_workers=1, pin_memory=True,
    )
    for is_train in (True, False)
]  # fmt: skip
model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(1, 2):
    model.train()
    for x, _ in loaders[0]:
        x = x.to(device)
        optimizer.zero_grad()
        image, mean, log_variance = model(x)
        loss = loss_of(image, x, mean, log_variance)
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for number, (x, _) in enumerate(loaders[1]):
            x = x.to(device)
            image, mean, log_variance = model(x)
            total += loss_of(image, x, mean, log_variance).item()
            if number == 0:
                both = torch.cat([x[:8], image.view(-1, 1, 28, 28)[:8]])
                save_image(both.cpu(), f"reconstruction_{epoch}.png", nrow=8)
        sample = model.decode(torch.randn(64, 20).to(device)).cpu()
        save_image(sample.view(64, 1, 28, 28), f"sample_{epoch}.png")
    print(f"epoch {epoch}: test loss {total / len(loaders[1].dataset):.4f}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
