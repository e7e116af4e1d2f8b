"""diffusers: an unconditional UNet with gradient checkpointing; then a conditional one on latents of a frozen
autoencoder, with a moving average of its weights, and a sample of it."""

from collections.abc import Callable

import torch
from common import STEPS, report, setup
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, UNet2DConditionModel, UNet2DModel
from diffusers.training_utils import EMAModel

TIMESTEPS = 100


def main() -> None:
    device = setup(__doc__)
    train_on_images(device)
    train_on_latents(device)
    report()


def train_on_images(device: torch.device) -> None:
    unet = UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).to(device)
    unet.enable_gradient_checkpointing()
    train(unet, lambda: torch.randn(4, 3, 16, 16).to(device), lambda noisy, times: unet(noisy, times).sample)


def train_on_latents(device: torch.device) -> None:
    autoencoder = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
    )
    autoencoder.requires_grad_(False)
    autoencoder.to(device)
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=8,
        norm_num_groups=8,
    ).to(device)
    prompts = torch.randn(2, 7, 24).to(device)

    @torch.no_grad()
    def latents() -> torch.Tensor:
        return autoencoder.encode(torch.randn(2, 3, 32, 32).to(device)).latent_dist.mode()

    average = EMAModel(unet.parameters(), model_cls=UNet2DConditionModel, model_config=unet.config)
    train(unet, latents, lambda noisy, times: unet(noisy, times, prompts).sample, average)
    sample(autoencoder, unet, prompts)


def train(
    unet: torch.nn.Module,
    batch: Callable[[], torch.Tensor],
    predict: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    average: EMAModel | None = None,
) -> None:
    scheduler = DDPMScheduler(num_train_timesteps=TIMESTEPS)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    for _ in range(STEPS):
        clean = batch()
        noise = torch.randn(clean.shape).to(clean.device)
        times = torch.randint(TIMESTEPS, (len(clean),)).to(clean.device)
        predicted = predict(scheduler.add_noise(clean, noise, times), times)
        torch.nn.functional.mse_loss(predicted, noise).backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if average is not None:
            average.step(unet.parameters())


@torch.no_grad()
def sample(autoencoder: AutoencoderKL, unet: UNet2DConditionModel, prompts: torch.Tensor) -> None:
    scheduler = DDIMScheduler(num_train_timesteps=TIMESTEPS)
    scheduler.set_timesteps(3)
    latents = torch.randn(len(prompts), 4, 16, 16).to(prompts.device)
    for time in scheduler.timesteps:
        latents = scheduler.step(unet(latents, time, prompts).sample, time, latents).prev_sample
    print("images", tuple(autoencoder.decode(latents).sample.shape))


if __name__ == "__main__":
    main()
