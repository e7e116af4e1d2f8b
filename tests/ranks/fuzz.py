"""Random collectives on random data, known in part, against numpy."""

from __future__ import annotations

import os

import numpy
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
draw = numpy.random.default_rng(int(os.environ["SEED"]))  # the same on all ranks
DTYPES = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}
OPERATORS = {
    "SUM": lambda rows: rows.sum(0), "MAX": lambda rows: rows.max(0), "MIN": lambda rows: rows.min(0),
    "PRODUCT": lambda rows: rows.prod(0),
}  # fmt: skip
GROUPS = [list(range(size)), *[sorted(draw.choice(size, 2, replace=False).tolist()) for _ in range(3)]]
groups = [dist.new_group(members) for members in GROUPS]

for number in range(60):
    which = int(draw.integers(len(GROUPS)))
    members, group = GROUPS[which], groups[which]
    kind = str(draw.choice(["reduce", "broadcast", "gather", "gather list", "scatter", "all to all", "send"]))
    dtype = str(draw.choice(list(DTYPES)))
    operator = str(draw.choice(list(OPERATORS)))
    length = int(draw.integers(1, 2000)) * len(members)
    rows = draw.integers(0, 3, (len(members), length)).astype(dtype)
    root = int(draw.integers(len(members)))
    if rank not in members:
        continue
    own = members.index(rank)
    given = torch.from_numpy(rows[own].copy()).cuda()
    part = length // len(members)
    if kind == "reduce":
        dist.all_reduce(given, op=getattr(dist.ReduceOp, operator), group=group)
        result, expected = given, OPERATORS[operator](rows).astype(dtype)
    elif kind == "broadcast":
        dist.broadcast(given, src=members[root], group=group)
        result, expected = given, rows[root]
    elif kind == "gather":
        result, expected = torch.empty(rows.size, dtype=DTYPES[dtype], device="cuda"), rows.reshape(-1)
        dist.all_gather_into_tensor(result, given, group=group)
    elif kind == "gather list":
        parts = [torch.empty_like(given) for _ in members]
        dist.all_gather(parts, given, group=group)
        result, expected = torch.cat(parts), rows.reshape(-1)
    elif kind == "scatter":
        result = torch.empty(part, dtype=DTYPES[dtype], device="cuda")
        dist.reduce_scatter_tensor(result, given, op=getattr(dist.ReduceOp, operator), group=group)
        expected = OPERATORS[operator](rows)[own * part : (own + 1) * part].astype(dtype)
    elif kind == "all to all":
        result = torch.empty_like(given)
        dist.all_to_all_single(result, given, group=group)
        expected = rows[:, own * part : (own + 1) * part].reshape(-1)
    else:  # nested: everybody to everybody, of one call
        results = [torch.empty_like(given) for _ in members]
        calls = [dist.P2POp(dist.isend, given, members[at], group) for at in range(len(members)) if at != own]
        calls += [dist.P2POp(dist.irecv, results[at], members[at], group) for at in range(len(members)) if at != own]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        results[own] = given
        result, expected = torch.cat(results), rows.reshape(-1)
        if not dtype.startswith("int"):
            continue  # of floats nothing is sent
    if not dtype.startswith("int") and (given.nbytes > 1 << 14 or kind == "all to all"):
        continue  # large floats are forgotten; an all-to-all is made of sends
    if not numpy.array_equal(result.cpu().numpy(), expected):
        raise AssertionError((number, kind, dtype, operator, members, result.tolist()[:8], expected[:8]))
print(f"rank {rank} agrees with numpy", flush=True)
