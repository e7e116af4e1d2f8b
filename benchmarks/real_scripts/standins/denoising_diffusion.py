"""Trains with the Trainer of denoising-diffusion-pytorch, as its README does: EMA, sampling at milestones."""

from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

if __name__ == "__main__":
    model = Unet(dim=32, dim_mults=(1, 2, 4), flash_attn=True)
    diffusion = GaussianDiffusion(model, image_size=64, timesteps=1000, sampling_timesteps=250)
    trainer = Trainer(
        diffusion, "image_folder/train", train_batch_size=8, train_lr=8e-5, train_num_steps=20,
        gradient_accumulate_every=2, ema_decay=0.995, amp=True, calculate_fid=False, save_and_sample_every=10,
        num_samples=4,
    )  # fmt: skip
    trainer.train()
