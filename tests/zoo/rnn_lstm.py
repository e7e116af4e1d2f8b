"""Recurrent nets: an LSTM in both directions with dropout between its layers, and a GRU on packed sequences."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def main() -> None:
    device = setup(__doc__)
    encoder = nn.LSTM(32, 64, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True).to(device)
    decoder = nn.GRU(128, 64, batch_first=True).to(device)
    head = nn.Linear(64, 10).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *head.parameters()])
    for step in range(STEPS):
        sequences = torch.randn(6, 20, 32).to(device)
        labels = torch.randint(10, (6,)).to(device)
        encoded, _ = encoder(sequences)
        lengths = [20 - step, 15, 11, 8, 5, 2]
        packed, _ = decoder(pack_padded_sequence(encoded, lengths, batch_first=True))
        decoded, _ = pad_packed_sequence(packed, batch_first=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(decoded[:, 0]), labels).backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
