"""Trains a GPT-2-sized language model on synthetic tokens: mixed precision, gradient checkpointing, accumulation.

python train_gpt2.py --size small --batch-size 8 --seq-len 1024 --precision bf16 --checkpointing
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    layers: int
    heads: int
    width: int
    vocabulary: int = 50257
    context: int = 1024
    dropout: float = 0.1


SIZES = {
    "tiny": Config(layers=2, heads=2, width=64, vocabulary=512),
    "small": Config(layers=12, heads=12, width=768),
    "medium": Config(layers=24, heads=16, width=1024),
    "large": Config(layers=36, heads=20, width=1280),
    "xl": Config(layers=48, heads=25, width=1600),
}


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT2(nn.Module):
    def __init__(self, config: Config, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(
                    parameter, std=0.02 / math.sqrt(2 * config.layers) if name.endswith("out.weight") else 0.02
                )

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing and self.training else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    config = SIZES[args.size]
    config.context = max(config.context, args.seq_len)
    model = GPT2(config, args.checkpointing).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")

    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
    precision = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]

    model.train()
    for step in range(args.steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(args.accumulate):
            tokens, targets = batch(config, args, device)
            with torch.autocast(device.type, dtype=precision) if precision else nullcontext():
                loss = model(tokens, targets) / args.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % args.log_every == 0:
            print(f"step {step}: loss {loss.item() * args.accumulate:.3f}")


def batch(config: Config, args: argparse.Namespace, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(config.vocabulary, (args.batch_size, args.seq_len + 1))
    if device.type == "cuda":
        tokens = tokens.pin_memory()
    tokens = tokens.to(device, non_blocking=True)
    return tokens[:, :-1], tokens[:, 1:]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations in the backward pass")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
