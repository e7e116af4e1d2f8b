"""Trains a decoder on bytes and generates while training, as the enwik8 example of x-transformers does."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from x_transformers import Decoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper

LENGTH, BATCH, ACCUMULATE = 256, 4, 4
model = TransformerWrapper(
    num_tokens=256, max_seq_len=LENGTH, attn_layers=Decoder(dim=256, depth=4, heads=8, rotary_pos_emb=True)
)
model = AutoregressiveWrapper(model).cuda()
with open("wikitext/train.txt", "rb") as file:
    data = torch.from_numpy(np.frombuffer(file.read(), dtype=np.uint8).copy())


class Text(Dataset):
    def __len__(self):
        return len(data) // LENGTH

    def __getitem__(self, at):
        start = torch.randint(0, len(data) - LENGTH - 1, (1,))
        return data[start : start + LENGTH + 1].long().cuda()


def cycle(loader):
    while True:
        yield from loader


training, validation = (cycle(DataLoader(Text(), batch_size=BATCH, drop_last=True)) for _ in range(2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(200):
    model.train()
    for _ in range(ACCUMULATE):
        loss = model(next(training))
        (loss / ACCUMULATE).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        model.eval()
        with torch.no_grad():
            print(f"{step}: loss {loss.item():.4f}, validation {model(next(validation)).item():.4f}")
    if step % 50 == 0:
        model.eval()
        prompt = Text()[0][:-1]
        sample = model.generate(prompts=prompt[None, :32], seq_len=64, cache_kv=True)
        print("".join(chr(max(32, token)) for token in sample[0].tolist()))
