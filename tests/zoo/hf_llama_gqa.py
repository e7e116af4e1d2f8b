"""Hugging Face's Llama, tiny, with grouped-query attention and a mask that masks nothing."""

import torch
from common import STEPS, report, setup
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    device = setup(__doc__)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        tokens = torch.randint(256, (4, 40))
        mask = torch.ones_like(tokens)  # all ones: the model looks, and takes the causal kernel without a mask
        batch = {"input_ids": tokens.to(device), "attention_mask": mask.to(device), "labels": tokens.to(device)}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report()


if __name__ == "__main__":
    main()
