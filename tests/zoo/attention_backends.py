"""Scaled dot product attention through each of its implementations: masks, causality, dropout, grouped queries."""

import contextlib

import torch
from common import STEPS, report, setup
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

WAYS = [
    (SDPBackend.FLASH_ATTENTION, torch.bfloat16, {"is_causal": True}),
    (SDPBackend.FLASH_ATTENTION, torch.float16, {"dropout_p": 0.1}),
    (SDPBackend.EFFICIENT_ATTENTION, torch.float32, {"is_causal": True}),
    (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16, {"attn_mask": "float"}),
    (SDPBackend.MATH, torch.float32, {"attn_mask": "bool"}),
    (SDPBackend.MATH, torch.float32, {"enable_gqa": True}),
]


def chosen(backend: SDPBackend, device: torch.device) -> contextlib.AbstractContextManager[None]:
    return sdpa_kernel(backend) if device.type == "cuda" else contextlib.nullcontext()


def main() -> None:
    device = setup(__doc__)
    project = nn.Linear(64, 3 * 64).to(device)
    optimizer = torch.optim.AdamW(project.parameters())
    masks = {"bool": torch.ones(48, 48).tril().bool().to(device), "float": torch.zeros(48, 48).to(device)}
    for _ in range(STEPS):
        query, key, value = (
            project(torch.randn(2, 48, 64).to(device)).unflatten(-1, (3, 4, 16)).transpose(1, 3).unbind(2)
        )
        loss = torch.zeros((), device=device)
        for backend, dtype, options in WAYS:
            q, k, v = (each.to(dtype) for each in (query, key, value))
            if "enable_gqa" in options:
                k, v = k[:, :2], v[:, :2]
            given = {
                name: masks[how].to(dtype) if how == "float" else masks.get(how, how) for name, how in options.items()
            }
            with chosen(backend, device):
                loss = loss + F.scaled_dot_product_attention(q, k, v, **given).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
