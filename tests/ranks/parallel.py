"""Trains a small model by the strategy that is named, and prints the peaks of its rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

WIDTH = 1024
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def model(num_blocks: int = 3) -> nn.Sequential:
    # The last layer is divided into unequal shards.
    return nn.Sequential(*(Block() for _ in range(num_blocks)), nn.Linear(WIDTH, 1001)).cuda()


def train(module: nn.Module, *, are_all_sharded: bool = True) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), foreach=are_all_sharded)
    for _ in range(3):
        functional.cross_entropy(module(torch.randn(32, WIDTH, device="cuda")), target(32)).backward()
        if are_all_sharded:
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def target(length: int) -> Tensor:
    return torch.randint(0, 1001, (length,), device="cuda")


def ddp() -> None:
    dist.init_process_group("nccl")
    train(nn.parallel.DistributedDataParallel(nn.Sequential(model(), nn.BatchNorm1d(1001).cuda())))


def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    dist.init_process_group("nccl")
    train(FullyShardedDataParallel(model(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True))


def sharded(mesh_shape: tuple[int, ...]) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", mesh_shape, mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :])
    module, policy = model(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in module:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    train(fully_shard(module, mesh=mesh, mp_policy=policy))


def tp() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("nccl")
    module = model()
    plan = {f"{at}.up": ColwiseParallel() for at in range(3)} | {f"{at}.down": RowwiseParallel() for at in range(3)}
    train(parallelize_module(module, init_device_mesh("cuda", (size,)), plan), are_all_sharded=False)


def pipeline() -> None:
    """The shapes are sent from stage to stage; each stage runs other layers."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("stage", "data"))
    index = mesh["stage"].get_local_rank()
    module = model(2) if index else nn.Sequential(*(Block() for _ in range(3))).cuda()
    stage = PipelineStage(module, index, 2, torch.device("cuda"), group=mesh["stage"].get_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=functional.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(3):
        if index:
            schedule.step(target=target(32), losses=[])
        else:
            schedule.step(torch.randn(32, WIDTH, device="cuda"))
        optimizer.step()
        optimizer.zero_grad()


STRATEGIES: dict[str, Callable[[], None]] = {
    "ddp": ddp,
    "fsdp1": fsdp1,
    "fsdp2": lambda: sharded((size,)),
    "hsdp": lambda: sharded((2, size // 2)),
    "tp": tp,
    "pipeline": pipeline,
}
STRATEGIES[sys.argv[1]]()
said = f"rank {rank}: {torch.cuda.max_memory_allocated()} allocated, {torch.cuda.max_memory_reserved()} reserved"
sys.stdout.write(said + "\n")
sys.stdout.flush()
dist.destroy_process_group()
