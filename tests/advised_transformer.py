"""A small transformer whose author can write each alternative into the script: what `--advise` does from outside."""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--optimizer", choices=["AdamW", "Adam", "Adafactor", "8bit"], default="AdamW")
parser.add_argument("--foreach", type=int)
parser.add_argument("--fused", type=int)
parser.add_argument("--keep-gradients", action="store_true")
parser.add_argument("--zero", choices=["first", "late", "after-step"], default="first")
parser.add_argument("--refuse-bf16", action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(args.width)
        self.mlp = nn.Sequential(
            nn.Linear(args.width, 4 * args.width), nn.GELU(), nn.Linear(4 * args.width, args.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(args.width, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpointing else block(x)
        return self.head(x)


model = Model().cuda()
if args.optimizer == "8bit":
    import bitsandbytes

    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-3, weight_decay=0.01)
elif args.optimizer == "Adafactor":
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3, weight_decay=0.01)
else:
    choices = {"foreach": args.foreach, "fused": args.fused}
    given = {name: bool(value) for name, value in choices.items() if value is not None}
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-3, weight_decay=0.01, **given)
for _ in range(3):
    x = torch.randn(args.batch, 128, args.width, device="cuda")
    y = torch.zeros(args.batch * 128, dtype=torch.long, device="cuda")
    if args.zero == "first":
        optimizer.zero_grad(set_to_none=not args.keep_gradients)
    with torch.autocast("cuda", dtype=torch.bfloat16) if args.autocast else nullcontext():
        logits = model(x)
        if args.refuse_bf16 and logits.dtype != torch.float32:
            raise ValueError("only float32 here")
        loss = F.cross_entropy(logits.flatten(0, 1), y)
    if args.zero == "late":
        optimizer.zero_grad()
    loss.backward()
    del logits, loss
    optimizer.step()
    if args.zero == "after-step":
        optimizer.zero_grad()
