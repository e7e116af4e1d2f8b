"""Collectives whose end nobody waits for, with a time limit that is over before the script is."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=timedelta(seconds=1))
group = dist.new_group(timeout=timedelta(seconds=1))
parameter = torch.ones(1 << 20, device="cuda", requires_grad=True)
for _ in range(3):
    parameter.sum().backward()
    dist.all_reduce(parameter.grad, async_op=True)
    dist.all_reduce(parameter.grad, async_op=True, group=group)
    time.sleep(1.2)
sys.stdout.write(f"rank {dist.get_rank()} goes on\n")
sys.stdout.flush()
dist.destroy_process_group()
