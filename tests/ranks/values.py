"""Prints what each rank receives, by every kind of exchange that decides something. BACKEND=gloo does it for real."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

backend = os.environ["BACKEND"]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = "cpu" if backend == "gloo" else f"cuda:{rank}"
if backend == "nccl":
    torch.cuda.set_device(rank)
dist.init_process_group(backend)
found = {}

counts = torch.tensor([(rank + 1) * (peer + 1) for peer in range(size)], device=device)
received = torch.empty_like(counts)
dist.all_to_all_single(received, counts)
tokens = torch.empty(int(received.sum()), 8, device=device)
dist.all_to_all_single(tokens, torch.randn(int(counts.sum()), 8, device=device), received.tolist(), counts.tolist())
found["tokens"] = tuple(tokens.shape)

objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "padding": list(range(10 * rank))})
found["objects of unequal size"] = objects
said = [{"from": rank}]
dist.broadcast_object_list(said, src=size - 1)
found["broadcast from the last"] = said
gathered = [None] * size if rank == 1 else None
dist.gather_object("of" * 40000 * rank, gathered, dst=1)
found["gathered on 1"] = gathered and [len(each) for each in gathered]
scattered = [None]
dist.scatter_object_list(scattered, ["for" * 20000 * peer for peer in range(size)] if rank == 0 else None, src=0)
found["scattered"] = len(scattered[0])

for name in ("SUM", "MIN", "MAX", "PRODUCT"):
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.float32, torch.float64):
        tensor = torch.tensor([rank + 1, 2, 7 - rank], dtype=dtype, device=device)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
        found[f"{name} of {dtype}"] = tensor.tolist()
tensor = torch.full((3,), rank, dtype=torch.int64, device=device)
dist.reduce(tensor, dst=1)
found["reduced on 1"] = tensor.tolist() if rank == 1 else None

one = torch.tensor([rank * 10], device=device)
other = torch.zeros_like(one)
ring = [dist.P2POp(dist.isend, one, (rank + 1) % size), dist.P2POp(dist.irecv, other, (rank - 1) % size)]
for work in dist.batch_isend_irecv(ring):
    work.wait()
found["ring"] = other.tolist()
if rank == 0:
    dist.send(torch.tensor([5, 6], device=device), dst=size - 1)
if rank == size - 1:
    pair = torch.zeros(2, dtype=torch.int64, device=device)
    dist.recv(pair, src=0)
    found["sent"] = pair.tolist()

evens = dist.new_group([each for each in range(size) if each % 2 == 0])
if rank % 2 == 0:
    tensor = torch.tensor([rank], device=device)
    dist.all_reduce(tensor, group=evens)
    found["evens"] = tensor.tolist()
dist.barrier()
for name, value in found.items():
    sys.stdout.write(f"rank {rank}: {name}: {value}\n")  # print makes two writes, with those of others in between
    sys.stdout.flush()
dist.destroy_process_group()
