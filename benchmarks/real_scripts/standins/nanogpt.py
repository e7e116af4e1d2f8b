"""Trains a GPT as nanoGPT's train.py does: mapped tokens, pinned batches, bfloat16, fused AdamW."""

import argparse
import math
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--heads", type=int, default=6)
parser.add_argument("--width", type=int, default=384)
parser.add_argument("--block", type=int, default=256)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--eval-iters", type=int, default=200)
parser.add_argument("--max-iters", type=int, default=5000)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--ddp", action="store_true")
args = parser.parse_args()
VOCABULARY = 50304 if args.width > 400 else 65


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(args.width, 3 * args.width, bias=False)
        self.out = nn.Linear(args.width, args.width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, args.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0, is_causal=True)
        return F.dropout(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)), 0.2, self.training)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(args.width, bias=False) for _ in range(2))
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(args.width, 4 * args.width, bias=False), nn.GELU(),
            nn.Linear(4 * args.width, args.width, bias=False), nn.Dropout(0.2),
        )  # fmt: skip

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, args.width), nn.Embedding(args.block, args.width)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width, bias=False)
        self.head = nn.Linear(args.width, VOCABULARY, bias=False)
        self.wte.weight = self.head.weight
        for name, parameter in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * args.layers))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)


if args.ddp:
    torch.distributed.init_process_group(backend="nccl")
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
else:
    device = "cuda"
torch.manual_seed(1337)
autocast = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)


def get_batch(split):
    data = np.memmap(f"tokens/{split}.bin", dtype=np.uint16, mode="r")
    at = torch.randint(len(data) - args.block, (args.batch,))
    x, y = (
        torch.stack([torch.from_numpy(data[i + shift : i + shift + args.block].astype(np.int64)) for i in at])
        for shift in (0, 1)
    )
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


model = GPT().to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=False)
if args.compile:
    model = torch.compile(model)
if args.ddp:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])


@torch.no_grad()
def estimate_loss():
    model.eval()
    means = {}
    for split in ("train", "val"):
        losses = torch.zeros(args.eval_iters)
        for k in range(args.eval_iters):
            x, y = get_batch(split)
            with autocast:
                losses[k] = model(x, y).item()
        means[split] = losses.mean()
    model.train()
    return means


best = 1e9
x, y = get_batch("train")
for iteration in range(args.max_iters):
    if iteration % 250 == 0:
        losses = estimate_loss()
        print(f"step {iteration}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best and iteration > 0:
            best = losses["val"]
            os.makedirs("out", exist_ok=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "out/ckpt.pt")
    for micro in range(args.accumulate):
        if args.ddp:
            model.require_backward_grad_sync = micro == args.accumulate - 1
        with autocast:
            loss = model(x, y) / args.accumulate
        x, y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iteration % 10 == 0:
        print(f"iter {iteration}: loss {loss.item() * args.accumulate:.4f}")
if args.ddp:
    torch.distributed.destroy_process_group()
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
