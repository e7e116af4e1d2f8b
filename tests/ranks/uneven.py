"""DDP of two ranks; the second one holds more, and does what its argument says after two steps."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda())
optimizer = torch.optim.AdamW(model.parameters())
extra = torch.empty(0 if sys.argv[1] == "alike" else rank * (100 << 20), dtype=torch.uint8, device="cuda")
steps_done = torch.zeros(1, dtype=torch.int64, device="cuda")


def go_wrong(how: str) -> None:
    if how == "raise":
        raise ValueError("bad data")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
    if how == "end":
        sys.exit(0)
    if how == "another collective":
        dist.broadcast(steps_done, src=0)
    if how == "wait":
        dist.recv(steps_done, src=0)


for step in range(6):
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2 and rank == 1:
        go_wrong(sys.argv[1])
    dist.all_reduce(steps_done)
    steps_done.item()
dist.destroy_process_group()
