"""A causal language model of three billion parameters in bfloat16, fine-tuned as a whole or by adapters of low rank:
gradient checkpointing, AdamW, PyTorch's scaled dot-product attention."""

import argparse

import torch
from torch import nn
from transformers import GraniteConfig, GraniteForCausalLM

CONFIG = GraniteConfig(
    vocab_size=49152, hidden_size=2304, intermediate_size=9216, num_hidden_layers=40, num_attention_heads=36,
    num_key_value_heads=36, tie_word_embeddings=True,
)  # fmt: skip
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")


class Adapted(nn.Module):
    """A frozen linear layer and a trained product of low rank, in float32 as PEFT keeps it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False, device="cuda", dtype=torch.float32)
        self.up = nn.Linear(rank, layer.out_features, bias=False, device="cuda", dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.layer(x)
        return result + self.up(self.down(x.to(self.down.weight.dtype))).to(result.dtype)


def adapt(model: nn.Module, rank: int) -> None:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in ADAPTED and isinstance(child, nn.Linear):
                setattr(module, name, Adapted(child, rank))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rank", type=int, help="train adapters of this rank alone")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    torch.set_default_dtype(torch.bfloat16)
    model = GraniteForCausalLM._from_config(CONFIG, attn_implementation="sdpa").cuda()
    torch.set_default_dtype(torch.float32)
    model.train()
    if options.rank:
        adapt(model, options.rank)
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.config.use_cache = False
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-5)
    shape = (options.batch_size, options.length)
    for _ in range(options.steps):
        tokens = torch.randint(0, CONFIG.vocab_size, shape)
        batch = {"input_ids": tokens.cuda(), "labels": tokens.cuda()}
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bool(options.rank)):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
