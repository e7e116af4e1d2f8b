"""Trains an autoencoder with a codebook, as the FashionMNIST example of vector-quantize-pytorch does."""

import torch
from torch import nn
from torchvision import datasets, transforms
from vector_quantize_pytorch import VectorQuantize

down = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), nn.MaxPool2d(2), nn.GELU(), nn.Conv2d(16, 32, 3, 1, 1), nn.MaxPool2d(2))
quantize = VectorQuantize(
    dim=32, codebook_size=256, accept_image_fmap=True, kmeans_init=True, threshold_ema_dead_code=2
)
up = nn.Sequential(
    nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, 1, 1), nn.GELU(), nn.Upsample(scale_factor=2),
    nn.Conv2d(16, 1, 3, 1, 1),
)  # fmt: skip
model = nn.ModuleList([down, quantize, up]).to("cuda")
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
dataset = datasets.MNIST("mnist", train=True, transform=transform)
loader = torch.utils.data.DataLoader(dataset, batch_size=256, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for epoch in range(3):
    for x, _ in loader:
        optimizer.zero_grad()
        x = x.to("cuda")
        z, indices, commitment = quantize(down(x))
        error = (up(z).clamp(-1, 1) - x).abs().mean()
        (error + 10 * commitment).backward()
        optimizer.step()
        active = indices.unique().numel() / 256 * 100
        print(f"epoch {epoch}: error {error.item():.3f}, commitment {commitment.item():.3f}, {active:.1f} % active")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
