"""Hugging Face's BERT for masked language modelling, tiny."""

import torch
from common import STEPS, report, setup
from transformers import BertConfig, BertForMaskedLM


def main() -> None:
    device = setup(__doc__)
    config = BertConfig(
        vocab_size=256,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        tokens = torch.randint(256, (4, 40))
        mask = torch.ones_like(tokens)
        mask[1, 20:] = 0
        labels = torch.where(torch.rand(4, 40) < 0.15, tokens, -100)
        batch = {"input_ids": tokens.to(device), "attention_mask": mask.to(device), "labels": labels.to(device)}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report()


if __name__ == "__main__":
    main()
