"""The jobs of many GPUs that `make bench` measures.

    python benchmarks/ranks.py fsdp2|pairs|none

`fsdp2`: a Llama of 8 billion parameters, each layer sharded over all ranks by fully_shard, mixed precision, activation
checkpointing, AdamW, a batch of 8,192 tokens a rank, three steps. `pairs`: a process group for every pair of ranks, and
a collective in those of this rank; `none`: the same without them.
"""

from __future__ import annotations

import itertools
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, WORDS, LENGTH = 4096, 14336, 32, 32, 8, 128256, 8192


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, KEY_HEADS * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        heads = (
            each(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def fsdp2() -> None:
    with torch.device("meta"):
        model = Llama()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    for _ in range(3):
        tokens = torch.randint(WORDS, (1, LENGTH), device="cuda")
        functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def pairs() -> None:
    one = torch.ones(1, dtype=torch.int64, device="cuda")
    for pair in itertools.combinations(range(dist.get_world_size()), 2):
        group = dist.new_group(list(pair))
        if dist.get_rank() in pair:
            dist.all_reduce(one, group=group)


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.ones(1, device="cuda")
    {"fsdp2": fsdp2, "pairs": pairs, "none": lambda: None}[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
