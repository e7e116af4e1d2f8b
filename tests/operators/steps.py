"""Optimizers, checkpointing, hooks, streams, copies between host and card."""

import torch
import torch.nn.functional as F
from common import DEVICE, Lambda, randn, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

for name in ("SGD", "Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adafactor"):
    train(nn.Linear(512, 512, bias=False), lambda: randn(64, 512), optimizer=getattr(torch.optim, name))
train(nn.Linear(512, 512), lambda: randn(64, 512), fused=True)
train(nn.Linear(512, 512), lambda: randn(64, 512), optimizer=torch.optim.Adam, capturable=True, amsgrad=True)
train(nn.Linear(512, 512), lambda: randn(64, 512), optimizer=torch.optim.SGD, momentum=0.9, nesterov=True, fused=True)


def recomputed(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return checkpoint(second, checkpoint(first, x, use_reentrant=True), use_reentrant=False)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256))


train(Lambda(recomputed, block(), block()), lambda: randn(512, 256))


def kept_on_the_host(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(x)


train(Lambda(kept_on_the_host, block()), lambda: randn(512, 256))

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10)).to(DEVICE)
optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(randn(16, 3, 32, 32)), torch.randint(0, 10, (16,), device=DEVICE))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

# The next batch is moved on a stream of its own, and nobody waits for it.
linear, side = nn.Linear(1024, 1024).to(DEVICE), torch.cuda.Stream()
for _ in range(4):
    with torch.cuda.stream(side):
        batch = torch.randn(2048, 1024).to(DEVICE, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    batch.record_stream(torch.cuda.current_stream())
    linear(batch).sum().backward()
    linear.zero_grad()

host = torch.randn(512, 512)
card = host.cuda()
card.double().half().bfloat16().float()
card.cpu().numpy()
torch.as_tensor(host.numpy(), device="cuda")
host.t().to("cuda:0", torch.float16)
card.data = card.data * 2
card[:, :10] += 1
torch.empty_like(card, device="cpu").t().copy_(card)
torch.randn(8, 3, 64, 64).to(memory_format=torch.channels_last).to(DEVICE)
