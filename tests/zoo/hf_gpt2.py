"""Hugging Face's GPT-2, tiny."""

import torch
from common import STEPS, report, setup
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    device = setup(__doc__)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        tokens = torch.randint(256, (4, 48)).to(device)
        batch = {"input_ids": tokens, "labels": tokens}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report()


if __name__ == "__main__":
    main()
