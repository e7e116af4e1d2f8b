"""The last rank waits for data that only rank 1 has, or for what nobody sets; or rank 0 gathers and scatters."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

how = sys.argv[1] if sys.argv[1:] else "data"
if how == "another size":
    os.environ["WORLD_SIZE"] = "2"
dist.init_process_group("nccl", **({"rank": 1, "world_size": 2} if how == "another rank" else {}))
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if how == "store":
    dist.distributed_c10d._get_default_store().get("greeting")


def say(what: object) -> None:
    if rank:
        sys.stdout.write(f"rank {rank}: {what}\n")
        sys.stdout.flush()


if how == "gather":
    for _ in range(2):
        gathered = [None] * dist.get_world_size()
        dist.gather_object("from " + "x" * rank, None if rank else gathered)
        given = [None]
        dist.scatter_object_list(given, None if rank else [f"for {each}" for each in range(len(gathered))])
    sys.stdout.write(f"rank {rank}: {given[0]}, gathered {gathered}\n")
    sys.stdout.flush()
count = torch.ones(1, dtype=torch.int64, device="cuda")
dist.all_reduce(count)  # said before anybody needs anybody
values = torch.tensor([11, 12] if rank == 1 else [-1, -1], device="cuda")
dist.broadcast(values, src=1)
say(values.tolist())
said = [f"from {rank}"]
dist.broadcast_object_list(said, src=1)
say(said[0])
torch.ones(100, device="cuda", requires_grad=True).sum().backward()
dist.destroy_process_group()
