"""Speech recognition: a recurrent net over spectrograms (an FFT on the device), the CTC loss, greedy decoding."""

import torch
from common import STEPS, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    recurrent, head = nn.RNN(65, 32, nonlinearity="relu", bidirectional=True).to(device), nn.Linear(64, 20).to(device)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *head.parameters()])
    window = torch.hann_window(128).to(device)
    for _ in range(STEPS):
        waves = torch.randn(4, 4000).to(device)
        spectra = torch.stft(waves, 128, hop_length=64, window=window, return_complex=True).abs()
        outputs, _ = recurrent(spectra.permute(2, 0, 1))
        scores = head(outputs).log_softmax(-1)
        targets = torch.randint(1, 20, (4, 10), dtype=torch.int32).to(device)
        lengths = torch.full((4,), scores.shape[0], dtype=torch.int32), torch.tensor([10, 7, 5, 3], dtype=torch.int32)
        optimizer.zero_grad()
        nn.functional.ctc_loss(scores, targets, *lengths, zero_infinity=True).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
