"""Bayesian optimization on the GPU, as BoTorch's README does: a model is fitted, then an acquisition is maximized."""

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

options = {"dtype": torch.float64, "device": torch.device("cuda")}
x = torch.rand(20, 2, **options)
y = 1 - (x - 0.5).norm(dim=-1, keepdim=True)
for number in range(2):
    model = SingleTaskGP(x, y, input_transform=Normalize(d=2), outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    bounds = torch.stack([torch.zeros(2, **options), torch.ones(2, **options)])
    candidate, value = optimize_acqf(
        LogExpectedImprovement(model=model, best_f=y.max()), bounds=bounds, q=1, num_restarts=5, raw_samples=20
    )
    x = torch.cat([x, candidate])
    y = torch.cat([y, 1 - (candidate - 0.5).norm(dim=-1, keepdim=True)])
    print(f"{number}: {value.item():.4f}, best {y.max().item():.4f}")
