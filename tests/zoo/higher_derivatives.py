"""Gradients of gradients: a penalty, Hessian-vector products, and torch.func (grad, vmap, jvp)."""

import torch
from common import STEPS, report, setup
from torch import func, nn


def penalty(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    inputs = inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def per_sample_gradients(model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return func.functional_call(model, weights, (sample.unsqueeze(0),)).square().sum()

    return func.vmap(func.grad(loss), in_dims=(None, 0))(weights, inputs)


def main() -> None:
    device = setup(__doc__)
    model = nn.Sequential(nn.Linear(16, 64), nn.Softplus(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        inputs = torch.randn(12, 16).to(device)
        optimizer.zero_grad()
        (model(inputs).mean() + penalty(model, torch.randn(12, 16).to(device))).backward()
        optimizer.step()
        for gradient in per_sample_gradients(model, inputs).values():
            assert gradient.shape[0] == 12
        _, tangent = func.jvp(lambda x: model(x), (inputs,), (torch.ones_like(inputs),))
        loss = model(inputs).square().mean() + tangent.detach().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        torch.autograd.grad(sum(gradient.sum() for gradient in gradients), list(model.parameters()))
    report()


if __name__ == "__main__":
    main()
