"""Augments images on the GPU while training, as kornia's tutorials do."""

import kornia.augmentation as K
import torch
from kornia.losses import ssim_loss
from torch import nn
from torchvision import datasets, models, transforms

augment = nn.Sequential(
    K.RandomHorizontalFlip(p=0.75), K.RandomAffine(degrees=15.0, p=0.5), K.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.8),
    K.RandomGaussianBlur((3, 3), (0.1, 2.0), p=0.3), K.RandomErasing(p=0.2),
)  # fmt: skip
transform = transforms.Compose([transforms.Resize((128, 128)), transforms.ToTensor()])
images = datasets.ImageFolder("image_folder/train", transform)
loader = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True, num_workers=1)
model = models.resnet18(num_classes=2).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for x, y in loader:
        x, y = x.to("cuda"), y.to("cuda")
        with torch.no_grad():
            changed = augment(x)
        loss = nn.functional.cross_entropy(model(changed), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, likeness {ssim_loss(changed, x, 5).item():.4f}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
