"""Factorisations in a training step: Cholesky, solve, SVD, QR, eigenvalues and an FFT (cuSOLVER, cuBLAS, cuFFT)."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    model = nn.Linear(24, 24).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        features = model(torch.randn(8, 24, 24).to(device))
        gram = features @ features.mT + torch.eye(24).to(device)
        factor = torch.linalg.cholesky_ex(gram).L
        solved = torch.linalg.solve_ex(gram, features).result
        orthogonal, _ = torch.linalg.qr(features)
        spectrum = torch.linalg.svdvals(features).sum() + torch.linalg.eigvalsh(gram).sum()
        frequencies = torch.fft.irfft2(torch.fft.rfft2(features))
        loss = factor.mean() + solved.mean() + orthogonal.mean() + spectrum + frequencies.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
