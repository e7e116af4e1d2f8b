"""Exact regression by a Gaussian process on the GPU, as GPyTorch's simple example does."""

import gpytorch
import torch

x = torch.linspace(0, 1, 500).cuda()
y = (torch.sin(x.cpu() * 6.28) + 0.2 * torch.randn(500)).cuda()


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = Model(x, y, likelihood).cuda()
model.train()
likelihood.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
likelihood_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for step in range(50):
    optimizer.zero_grad()
    loss = -likelihood_of(model(x), y)
    loss.backward()
    print(f"{step}: {loss.item():.3f}, length {model.covariance.base_kernel.lengthscale.item():.3f}")
    optimizer.step()
model.eval()
likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    found = likelihood(model(torch.linspace(0, 1, 51).cuda()))
    lower, upper = found.confidence_region()
    print(found.mean.cpu()[:3], lower.cpu()[:3], upper.cpu()[:3])
