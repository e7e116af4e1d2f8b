"""Pretrains a masked autoencoder, as mae's main_pretrain.py does: most patches are dropped at random."""

import torch
from timm.models.vision_transformer import Block, PatchEmbed
from torch import nn
from torchvision import datasets, transforms

WIDTH, DECODER, KEPT = 384, 256, 0.25


class MaskedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = PatchEmbed(224, 16, 3, WIDTH)
        count = self.patches.num_patches
        self.position = nn.Parameter(torch.zeros(1, count, WIDTH), requires_grad=False)
        self.encoder = nn.Sequential(*[Block(WIDTH, 6, 4, qkv_bias=True) for _ in range(6)], nn.LayerNorm(WIDTH))
        self.between, self.mask_token = nn.Linear(WIDTH, DECODER), nn.Parameter(torch.zeros(1, 1, DECODER))
        self.decoder = nn.Sequential(*[Block(DECODER, 8, 4, qkv_bias=True) for _ in range(4)], nn.LayerNorm(DECODER))
        self.pixels = nn.Linear(DECODER, 16 * 16 * 3)

    def forward(self, images):
        x = self.patches(images) + self.position
        batch, length, width = x.shape
        kept = int(length * KEPT)
        order = torch.rand(batch, length, device=x.device).argsort(dim=1)
        restore = order.argsort(dim=1)
        x = torch.gather(x, 1, order[:, :kept, None].repeat(1, 1, width))
        mask = torch.ones(batch, length, device=x.device)
        mask[:, :kept] = 0
        mask = torch.gather(mask, 1, restore)
        x = self.between(self.encoder(x))
        x = torch.cat([x, self.mask_token.repeat(batch, length - kept, 1)], dim=1)
        x = self.pixels(self.decoder(torch.gather(x, 1, restore[:, :, None].repeat(1, 1, DECODER))))
        target = images.reshape(batch, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).reshape(batch, length, -1)
        return (((x - target) ** 2).mean(dim=-1) * mask).sum() / mask.sum()


transform = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
loader = torch.utils.data.DataLoader(
    datasets.ImageFolder("image_folder/train", transform), batch_size=16, shuffle=True, num_workers=2, pin_memory=True,
    drop_last=True,
)  # fmt: skip
model = MaskedAutoencoder().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cuda")
for epoch in range(3):
    optimizer.zero_grad()
    for number, (images, _) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(images.to("cuda", non_blocking=True))
        scaler.scale(loss / 2).backward()
        if (number + 1) % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, f"checkpoint-{epoch}.pth")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
