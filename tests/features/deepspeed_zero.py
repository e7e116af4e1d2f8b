"""DeepSpeed in one process: ZeRO stages 0 to 3 with PyTorch's AdamW, in bfloat16 and with a loss scale in float16."""

import gc
import os
import socket

import deepspeed
import torch
from common import note_peaks, report
from torch import nn


def free_port() -> str:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return str(asked.getsockname()[1])


os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")


def train(stage: int, precision: dict[str, object], dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 1_000_000},
            **precision,
        },
    )
    for _ in range(3):
        engine.backward(engine(torch.randn(8, 512, dtype=dtype, device=engine.device)).square().mean())
        engine.step()
    print("stage", stage, dtype, engine.global_steps, engine.skipped_steps)
    note_peaks()
    engine.destroy()
    del engine, model
    gc.collect()


for stage in range(4):
    train(stage, {"bf16": {"enabled": True}}, torch.bfloat16)
train(2, {"fp16": {"enabled": True}}, torch.float16)
report()
