"""Hugging Face's T5, tiny: encoder and decoder."""

import torch
from common import STEPS, report, setup
from transformers import T5Config, T5ForConditionalGeneration


def main() -> None:
    device = setup(__doc__)
    config = T5Config(
        vocab_size=256,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        source, target = torch.randint(1, 256, (4, 24)), torch.randint(1, 256, (4, 12))
        batch = {"input_ids": source.to(device), "labels": target.to(device)}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report()


if __name__ == "__main__":
    main()
