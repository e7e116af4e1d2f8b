"""Trains a diffusion model and samples from it after each epoch, as diffusers' train_unconditional.py does."""

import torch
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.nn import functional as F
from torchvision import datasets, transforms

RESOLUTION = 64
accelerator = Accelerator(mixed_precision="no", project_dir="out")
attention = (False, False, False, False, True, False)
model = UNet2DModel(
    sample_size=RESOLUTION, in_channels=3, out_channels=3, layers_per_block=2,
    block_out_channels=(64, 64, 128, 128, 256, 256),
    down_block_types=["AttnDownBlock2D" if each else "DownBlock2D" for each in attention],
    up_block_types=["AttnUpBlock2D" if each else "UpBlock2D" for each in reversed(attention)],
)  # fmt: skip
ema = EMAModel(model.parameters(), decay=0.9999, model_cls=UNet2DModel, model_config=model.config)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
augment = transforms.Compose([
    transforms.Resize(RESOLUTION), transforms.CenterCrop(RESOLUTION), transforms.RandomHorizontalFlip(),
    transforms.ToTensor(), transforms.Normalize([0.5], [0.5]),
])  # fmt: skip
images = datasets.ImageFolder("image_folder/train", augment)
loader = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True, num_workers=1)
scheduler = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=500, num_training_steps=len(loader) * 2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
ema.to(accelerator.device)
accelerator.init_trackers("train_unconditional")
for epoch in range(2):
    model.train()
    for clean, _ in loader:
        noise = torch.randn(clean.shape, dtype=torch.float32, device=clean.device)
        timesteps = torch.randint(0, 1000, (clean.shape[0],), device=clean.device).long()
        noisy = noise_scheduler.add_noise(clean, noise, timesteps)
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(noisy, timesteps).sample.float(), noise.float())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        ema.step(model.parameters())
        accelerator.log({"loss": loss.detach().item()})
    unet = accelerator.unwrap_model(model)
    ema.store(unet.parameters())
    ema.copy_to(unet.parameters())
    pipeline = DDPMPipeline(unet=unet, scheduler=noise_scheduler)
    drawn = pipeline(
        generator=torch.Generator(device=pipeline.device).manual_seed(0), batch_size=16, num_inference_steps=1000,
        output_type="np",
    ).images  # fmt: skip
    ema.restore(unet.parameters())
    print(f"epoch {epoch}: samples {(drawn * 255).round().astype('uint8').shape}")
    pipeline.save_pretrained("out")
accelerator.end_training()
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
