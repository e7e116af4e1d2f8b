"""Tests of GPU memory: `pip install foretell pytest`, then `pytest`. They need no GPU."""

import pytest
import torch


def train(width: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(256, width, device="cuda")).square().mean().backward()
        optimizer.step()


@pytest.mark.gpu_memory(limit="2GiB", gpu="a10g")
def test_training_needs_at_most_2_gib() -> None:
    train(width=1024)


def test_memory_grows_with_the_parameters(gpu_estimate) -> None:
    small, large = (gpu_estimate(train, gpu="a10g", args=[width]).peak for width in (1024, 2048))
    assert large.allocated_bytes < 4.5 * small.allocated_bytes
