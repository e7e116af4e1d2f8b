"""Integer and boolean arithmetic on the GPU that decides shapes: unique, cumsum, repeat_interleave, masked_select."""

import torch
from common import STEPS, report, setup
from torch import nn
from torch.nn.utils.rnn import pad_sequence


def main() -> None:
    device = setup(__doc__)
    embedding, head = nn.Embedding(64, 32).to(device), nn.Linear(32, 8).to(device)
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.1)
    for step in range(STEPS):
        lengths = torch.tensor([3, 5 + step, 2, 4]).to(device)
        tokens = torch.randint(64, (4, 12)).to(device)
        valid = torch.arange(tokens.shape[1], device=device) < lengths[:, None]
        packed = tokens.masked_select(valid)
        sentence = torch.repeat_interleave(torch.arange(4, device=device), lengths)
        starts = lengths.cumsum(0) - lengths
        words, positions = torch.unique(packed, return_inverse=True)
        vectors = embedding(words)[positions]
        pooled = torch.zeros(4, 32, device=device).index_add(0, sentence, vectors)
        padded = pad_sequence(list(vectors.split(lengths.tolist())), batch_first=True)
        if (lengths > 6).any():
            pooled = pooled + padded.max(dim=1).values
        optimizer.zero_grad()
        head(pooled + vectors[starts]).square().mean().backward()
        optimizer.step()
    report()


if __name__ == "__main__":
    main()
