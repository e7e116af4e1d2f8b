"""Trains a diffusion transformer on latents of a frozen autoencoder, as DiT's train.py does: DDP, EMA."""

from copy import deepcopy

import torch
import torch.distributed as dist
from diffusers import AutoencoderKL, DDPMScheduler, DiTTransformer2DModel
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

torch.backends.cuda.matmul.allow_tf32 = True
dist.init_process_group("nccl")
device = dist.get_rank() % torch.cuda.device_count()
torch.cuda.set_device(device)
torch.manual_seed(dist.get_rank())
model = DiTTransformer2DModel(
    num_attention_heads=12, attention_head_dim=64, in_channels=4, out_channels=8, num_layers=12, sample_size=32,
    patch_size=2, num_embeds_ada_norm=1000,
)  # fmt: skip
ema = deepcopy(model).to(device)
for parameter in ema.parameters():
    parameter.requires_grad_(False)
model = DistributedDataParallel(model.to(device), device_ids=[device])
vae = AutoencoderKL(
    block_out_channels=(64, 128, 256, 256), down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=4,
).to(device)  # fmt: skip
diffusion = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
transform = transforms.Compose(
    [transforms.Resize((256, 256)), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
)
dataset = datasets.ImageFolder("image_folder/train", transform)
sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=dist.get_rank(), shuffle=True, seed=0)
loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2, pin_memory=True, drop_last=True)
model.train()
ema.eval()
running = steps = 0
for epoch in range(1400):
    sampler.set_epoch(epoch)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        with torch.no_grad():
            x = vae.encode(x).latent_dist.sample().mul_(0.18215)
        t = torch.randint(0, 1000, (x.shape[0],), device=device)
        noise = torch.randn_like(x)
        output = model(diffusion.add_noise(x, noise, t), t, class_labels=y).sample
        loss = F.mse_loss(output[:, :4], noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(ema.parameters(), model.module.parameters(), strict=True):
                slow.mul_(0.9999).add_(fast, alpha=0.0001)
        running, steps = running + loss.item(), steps + 1
        if steps % 100 == 0:
            torch.cuda.synchronize()
            mean = torch.tensor(running / 100, device=device)
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            print(f"step {steps}: loss {mean.item() / dist.get_world_size():.4f}")
            running = 0
dist.destroy_process_group()
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
