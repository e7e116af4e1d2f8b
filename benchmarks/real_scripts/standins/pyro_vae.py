"""Stochastic variational inference of a VAE, as Pyro's vae.py does."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from torch import nn
from torchvision import datasets, transforms


class VAE(nn.Module):
    def __init__(self, hidden=400, latent=50):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.Softplus(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Softplus(), nn.Linear(hidden, 784), nn.Sigmoid())
        self.latent = latent
        self.cuda()

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", x.shape[0]):
            zeros = torch.zeros(x.shape[0], self.latent, device=x.device)
            z = pyro.sample("latent", dist.Normal(zeros, torch.ones_like(zeros)).to_event(1))
            pixels = dist.Bernoulli(self.decoder(z), validate_args=False).to_event(1)
            pyro.sample("obs", pixels, obs=x.reshape(-1, 784))

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", x.shape[0]):
            mean, scale = self.encoder(x).chunk(2, dim=-1)
            pyro.sample("latent", dist.Normal(mean, torch.exp(scale)).to_event(1))


pyro.clear_param_store()
loaders = [
    torch.utils.data.DataLoader(datasets.MNIST("mnist", train=each, transform=transforms.ToTensor()), batch_size=256)
    for each in (True, False)
]
vae = VAE()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1e-3}), loss=Trace_ELBO())
for epoch in range(3):
    loss = sum(svi.step(x.cuda()) for x, _ in loaders[0])
    test = sum(svi.evaluate_loss(x.cuda()) for x, _ in loaders[1])
    print(f"epoch {epoch}: {loss / len(loaders[0].dataset):.4f}, test {test / len(loaders[1].dataset):.4f}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
