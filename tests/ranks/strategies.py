"""Three training steps of a small model, split over all ranks in the way of the argument. Each rank prints, as JSON,
the bytes of the parameters and of the optimizer's state that it holds."""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.fsdp as fsdp
import torch.distributed.nn
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as tp
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH, LENGTH, BATCH, VOCABULARY, LAYERS = 256, 128, 4, 1000, 4
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
ALL_RUN = "IN_PART" not in os.environ
"""If only some ranks run, the others are taken to say what these say."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch() -> Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), device=device)


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1).float(), target.flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = batch()
        loss_of(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


# --- data parallel ----------------------------------------------------------------------------------------------------


def ddp(hook: object = None, state: object = None, **options: object) -> torch.optim.Optimizer:
    model = DDP(Model().cuda(), **options)
    if hook:
        model.register_comm_hook(state, hook)
    return train(model)


def ddp_zero() -> torch.optim.Optimizer:
    model = DDP(Model().cuda(), find_unused_parameters=True)
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)).optim


def ddp_power_sgd() -> torch.optim.Optimizer:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return ddp(powerSGD_hook.powerSGD_hook, state, find_unused_parameters=True)


def ddp_many_parameters() -> torch.optim.Optimizer:
    model = DDP(nn.Sequential(*[nn.Linear(8, 8) for _ in range(2000)]).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(torch.randn(4, 8, device=device)).sum().backward()
        optimizer.step()
    return optimizer


# --- sharded ----------------------------------------------------------------------------------------------------------


def fsdp1() -> torch.optim.Optimizer:
    precision = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrapped = fsdp.FullyShardedDataParallel(
        Model(), device_id=device, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision,
        use_orig_params=True,
    )  # fmt: skip
    return train(wrapped)


def fsdp2(
    *, mesh: object = None, offload: bool = False, checkpoint: bool = False, compiled: bool = False
) -> torch.optim.Optimizer:
    model = Model() if offload else Model().cuda()
    if checkpoint:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    options = {
        "mesh": mesh or init_device_mesh("cuda", (size,)),
        "mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": fsdp.CPUOffloadPolicy() if offload else fsdp.OffloadPolicy(),
    }
    for block in model.blocks:
        fsdp.fully_shard(block, **options)
    fsdp.fully_shard(model, **options)
    if compiled:
        model.compile(backend="aot_eager")
    return train(model)


def hsdp() -> torch.optim.Optimizer:
    return fsdp2(mesh=init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("replicas", "shards")))


def checkpointed() -> torch.optim.Optimizer:
    """Saves the shards, and loads them into another job's model."""
    model, folder = Model().cuda(), [tempfile.mkdtemp() if rank == 0 else None]
    fsdp.fully_shard(model)
    optimizer = train(model)
    dist.broadcast_object_list(folder)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder[0])
    return optimizer


# --- tensor, sequence, context, experts -------------------------------------------------------------------------------


def tensor_parallel(compiled: bool = False) -> torch.optim.Optimizer:
    """With sequence parallelism around the norms."""
    mesh = init_device_mesh("cuda", (size,))
    model = Model().cuda()
    tp.parallelize_module(model, mesh, {
        "tokens": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "head": tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })  # fmt: skip
    for block in model.blocks:
        tp.parallelize_module(block, mesh, {
            "norm": tp.SequenceParallel(),
            "qkv": tp.ColwiseParallel(input_layouts=Shard(1)), "out": tp.RowwiseParallel(output_layouts=Shard(1)),
            "up": tp.ColwiseParallel(input_layouts=Shard(1)), "down": tp.RowwiseParallel(output_layouts=Shard(1)),
        })  # fmt: skip
    if compiled:
        model.compile(backend="aot_eager")
    return train(model)


def context_parallel() -> torch.optim.Optimizer:
    from torch.distributed.tensor.experimental import context_parallel as sharded
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (size,))
    model = DDP(Model().cuda().bfloat16(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x, target = batch(), batch()
        with sharded(mesh, buffers=[x, target], buffer_seq_dims=[1, 1]), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss_of(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


class Experts(nn.Module):
    """One expert on each rank; a learned gate sends each token to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, size, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weight, chosen = (each.squeeze(-1) for each in self.gate(tokens).softmax(-1).topk(1))
        order = chosen.argsort()
        sent = torch.bincount(chosen, minlength=size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        ours, theirs = sent.tolist(), received.tolist()
        exchange = dist.nn.functional.all_to_all_single  # with gradients
        mine = exchange(tokens.new_empty(sum(theirs), WIDTH), tokens[order], theirs, ours)
        mine = self.down(F.gelu(self.up(mine)))
        back = exchange(torch.empty_like(tokens), mine, ours, theirs)
        return (torch.empty_like(tokens).index_copy(0, order, back) * weight[:, None]).view_as(x)


def expert_parallel() -> torch.optim.Optimizer:
    model = Model(layers=0).cuda()
    model.blocks.append(Experts().cuda())
    return train(model)


# --- pipelines --------------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    def __init__(self, number: int, count: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH) if number == 0 else None
        self.blocks = nn.Sequential(*[Block() for _ in range(8 // count)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if number == count - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x if self.tokens is None else self.tokens(x))
        return x if self.head is None else self.head(x)


def pipeline(kind: str, per_rank: int = 1) -> torch.optim.Optimizer:
    count = size * per_rank
    numbers, options = [rank + size * turn for turn in range(per_rank)], {}
    if kind in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):  # a V: down the ranks, and up again
        numbers = [rank, count - 1 - rank]
        if "stage_index_to_group_rank" in inspect.signature(getattr(schedules, kind)).parameters:  # torch 2.6
            options["stage_index_to_group_rank"] = {each: min(each, count - 1 - each) for each in range(count)}
    modules = [Stage(number, count).to(device) for number in numbers]
    stages = [PipelineStage(module, number, count, device) for module, number in zip(modules, numbers, strict=True)]
    schedule = getattr(schedules, kind)(stages if per_rank > 1 else stages[0], 8, loss_fn=loss_of, **options)
    optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()])
    for _ in range(3):
        x = torch.randint(0, VOCABULARY, (8 * BATCH, LENGTH), device=device)
        schedule.step(*[x] * (0 in numbers), **({"target": x, "losses": []} if count - 1 in numbers else {}))
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


# --- other ways to communicate ----------------------------------------------------------------------------------------


def several_communicators() -> torch.optim.Optimizer:
    """Several groups, Gloo beside NCCL, and collectives that are waited for later, or never."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    gloo = dist.new_group(backend="gloo")
    flags = [None] * size
    optimizer = train(DDP(Model().cuda(), find_unused_parameters=True))
    dist.all_gather_object(flags, {"rank": rank, "padding": "x" * rank}, group=gloo)
    assert not ALL_RUN or [flag["rank"] for flag in flags] == list(range(size)), flags
    works = [dist.all_reduce(torch.ones(1 << 20, device=device), async_op=True) for _ in range(4)]
    works[0].wait()
    total = torch.ones(1, dtype=torch.int64, device=device)
    dist.all_reduce(total, group=pairs[rank // 2])
    assert total.item() == 2
    return optimizer


def shrunk() -> torch.optim.Optimizer:
    """The last rank leaves, and the others train."""
    if rank == size - 1:
        return torch.optim.AdamW(Model().cuda().parameters())
    dist.shrink_group([size - 1])
    total = torch.full((1,), rank + 1, device=device)
    dist.all_reduce(total)
    assert not ALL_RUN or total.item() == size * (size - 1) // 2, total
    return train(DDP(Model().cuda(), find_unused_parameters=True))


def collectives_in_graph() -> torch.optim.Optimizer:
    """The graph keeps what they use."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(WIDTH, WIDTH, device=device))])
    ours = torch.zeros(WIDTH, device=device)
    everybodys = torch.empty(size * WIDTH, device=device)
    dist.all_gather_into_tensor(everybodys, ours)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(ours)
        dist.all_gather_into_tensor(everybodys, ours)
    for _ in range(3):
        graph.replay()
    return optimizer


def dtensor_values(initialise: bool = False) -> torch.optim.Optimizer:
    """A DTensor of integers decides something."""
    mesh = init_device_mesh("cuda", (size,))
    lengths = distribute_tensor(torch.arange(4 * size, device=device), mesh, [Shard(0)])
    found, total = lengths.full_tensor().tolist(), int(lengths.sum().full_tensor())
    assert not ALL_RUN or (found == list(range(4 * size)) and total == 2 * size * (4 * size - 1))
    weight = nn.Parameter(DTensor.from_local(torch.empty(64, WIDTH, device=device), mesh, [Shard(0)]))
    if initialise:
        nn.init.trunc_normal_(weight)  # made of other operators, by the compiler
    return torch.optim.SGD([weight], lr=0.1)


STRATEGIES = {
    "ddp": partial(ddp, find_unused_parameters=True),
    "ddp static graph": partial(ddp, static_graph=True),
    "ddp fp16": partial(ddp, default_hooks.fp16_compress_hook, find_unused_parameters=True),
    "ddp powerSGD": ddp_power_sgd,
    "ddp, sharded optimizer": ddp_zero,
    "ddp of 4,000 tensors": ddp_many_parameters,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "fsdp2 offloaded": partial(fsdp2, offload=True),
    "fsdp2 checkpointing": partial(fsdp2, checkpoint=True),
    "fsdp2 compiled": partial(fsdp2, compiled=True),
    "hsdp": hsdp,
    "distributed checkpoint": checkpointed,
    "tensor and sequence parallel": tensor_parallel,
    "tensor parallel compiled": partial(tensor_parallel, compiled=True),
    "context parallel": context_parallel,
    "expert parallel": expert_parallel,
    "gpipe": partial(pipeline, "ScheduleGPipe"),
    "1f1b": partial(pipeline, "Schedule1F1B"),
    "interleaved": partial(pipeline, "ScheduleInterleaved1F1B", 2),
    "zero bubble": partial(pipeline, "ScheduleInterleavedZeroBubble", 2),
    "zero bubble, V": partial(pipeline, "ScheduleZBVZeroBubble", 2),
    "several communicators": several_communicators,
    "collectives in a graph": collectives_in_graph,
    "shrunk": shrunk,
    "dtensor values": dtensor_values,
    "dtensor initialised": partial(dtensor_values, initialise=True),
}


def local_bytes(tensor: Tensor) -> int:
    tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return tensor.nbytes if tensor.is_cuda else 0


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if sys.argv[1] == "shrunk" else None)
    optimizer = STRATEGIES[sys.argv[1]]()
    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    found = {
        "rank": rank,
        "parameters": sum(map(local_bytes, held)),
        "state": sum(local_bytes(state) for state in states if state.ndim),
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }
    peaks = f"rank {rank}: {found['allocated']} allocated, {found['reserved']} reserved"
    sys.stdout.write(f"FOUND {json.dumps(found)}\n{peaks}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
