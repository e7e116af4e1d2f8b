"""BERT with random weights on random tokens, as transformers' documentation trains it: a tensor-by-tensor optimizer,
gradients zeroed and not dropped; perhaps gradients of several batches accumulated, and checkpoints."""

import argparse

import torch
from transformers import Adafactor, BertConfig, BertForSequenceClassification

LARGE = BertConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, attn_implementation="eager"
)
LENGTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-load", action="store_true", help="move the weights to the card, and end")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--optimizer", choices=["AdamW", "Adafactor"], default="AdamW")
    parser.add_argument("--amp", action="store_true", help="fp16 autocast, with a gradient scaler")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    model = BertForSequenceClassification._from_config(LARGE).cuda()
    if options.only_load:
        return
    model.train()
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    optimizer: torch.optim.Optimizer
    if options.optimizer == "Adafactor":
        optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=options.amp)
    shape = (options.batch_size, LENGTH)
    for _ in range(options.steps):
        for _ in range(options.accumulation):
            batch = {
                "input_ids": torch.randint(0, LARGE.vocab_size, shape).cuda(),
                "labels": torch.randint(0, 2, (options.batch_size,)).cuda(),
            }
            with torch.autocast("cuda", dtype=torch.float16, enabled=options.amp):
                loss = model(**batch).loss / options.accumulation
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)


if __name__ == "__main__":
    main()
