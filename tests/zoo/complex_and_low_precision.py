"""Types besides float32: complex weights, float16, bfloat16, float64, eight bits (stored; the products are float16)."""

import torch
from common import STEPS, report, setup
from torch import nn


class Spectral(nn.Module):
    """Learned filters on Fourier coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(8, 33, dtype=torch.complex64))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        coefficients = torch.fft.rfft(signal, dim=-1)
        mixed = torch.einsum("bcf,cf->bcf", coefficients, self.filters) * torch.polar(
            coefficients.abs(), coefficients.angle()
        )
        return torch.fft.irfft(mixed, n=signal.shape[-1], dim=-1) + torch.view_as_real(mixed).mean()


def main() -> None:
    device = setup(__doc__)
    spectral = Spectral().to(device)
    layers = {
        dtype: nn.Linear(64, 64, dtype=dtype).to(device) for dtype in (torch.float16, torch.bfloat16, torch.float64)
    }
    optimizer = torch.optim.Adam(
        [*spectral.parameters(), *(p for layer in layers.values() for p in layer.parameters())]
    )
    for _ in range(STEPS):
        filtered = spectral(torch.randn(4, 8, 64).to(device))
        eights = [filtered.to(kind).to(torch.float16) for kind in (torch.float8_e4m3fn, torch.float8_e5m2)]
        quantised = (filtered * 10).round().clamp(-128, 127).to(torch.int8)
        loss = filtered.mean() + sum(layer(filtered.to(dtype)).float().mean() for dtype, layer in layers.items())
        loss = loss + sum(each.float().mean() for each in eights) + quantised.float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
