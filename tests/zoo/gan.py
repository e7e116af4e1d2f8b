"""A GAN: two networks, two optimizers, detached samples, and a gradient penalty (a gradient of a gradient)."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784), nn.Tanh()).to(device)
    critic = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in range(STEPS):
        real = torch.randn(32, 784).to(device)
        noise = torch.randn(32, 16, device=device)

        critic_optimizer.zero_grad()
        fake = generator(noise).detach()
        mixed = torch.lerp(real, fake, torch.rand(32, 1, device=device)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        generator_optimizer.step()
    report()


if __name__ == "__main__":
    main()
