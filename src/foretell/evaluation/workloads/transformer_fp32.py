"""A large Transformer in fp32 as it was measured on six cards: forward, or forward and backward without an optimizer
step. A gradient is 8 bytes beside its parameter; the optimizer here does nothing, it only ends the step."""

import argparse
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

NUM_PASSES = 3


class NoStep(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        """Leaves the parameters as they are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="its name begins with bert or gpt")
    parser.add_argument("--mode", choices=["train", "infer"], required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--sequence-length", type=int, required=True)
    for name in ("hidden", "layers", "heads", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--intermediate", type=int)
    options = parser.parse_args()

    torch.backends.cudnn.allow_tf32 = False
    is_training = options.mode == "train"
    if options.model.startswith("bert"):
        config: Any = BertConfig(
            vocab_size=options.vocabulary, hidden_size=options.hidden, num_hidden_layers=options.layers,
            num_attention_heads=options.heads, intermediate_size=options.intermediate,
        )  # fmt: skip
        kind = BertForPreTraining if is_training else BertForSequenceClassification
    else:
        config = GPT2Config(
            vocab_size=options.vocabulary, n_embd=options.hidden, n_layer=options.layers, n_head=options.heads,
            n_positions=options.sequence_length,
        )  # fmt: skip
        kind = GPT2LMHeadModel
    config._attn_implementation = "eager"
    model = kind(config).cuda()
    tokens = torch.ones(options.batch_size, options.sequence_length, dtype=torch.long, device="cuda")
    if not is_training:
        model.eval()
        with torch.no_grad():
            for _ in range(NUM_PASSES):
                model(input_ids=tokens)
                torch.cuda.synchronize()
        return
    model.train()
    optimizer = NoStep(model.parameters())
    if options.model.startswith("bert"):
        labels = {"labels": tokens, "next_sentence_label": torch.ones(options.batch_size, dtype=torch.long).cuda()}
    else:
        labels = {"labels": tokens}
    for _ in range(NUM_PASSES):
        optimizer.zero_grad()
        model(input_ids=tokens, **labels).loss.backward()
        optimizer.step()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
