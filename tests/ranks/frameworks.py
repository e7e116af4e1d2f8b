"""Trains a small model with a framework that splits it over all ranks, and prints the peaks of its rank."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 512
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def model() -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(3)), nn.Linear(WIDTH, 10))


def examples() -> TensorDataset:
    return TensorDataset(torch.randn(96, WIDTH), torch.randint(0, 10, (96,)))


def deepspeed_config(stage: int, offload: str | None = None) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 1_000_000}
    if offload:
        zero["offload_optimizer"] = {"device": offload, "pin_memory": True}
    if offload and stage == 3:
        zero["offload_param"] = {"device": offload, "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }


def with_deepspeed(stage: str, offload: str | None = None) -> None:
    import deepspeed

    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    config = deepspeed_config(int(stage), offload)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    for _ in range(3):
        out = engine(torch.randn(8, WIDTH, dtype=torch.bfloat16, device=engine.device))
        engine.backward(out.float().square().mean())
        engine.step()


def with_accelerate(how: str, stage: str = "3") -> None:
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin

    options: dict[str, Any] = {"mixed_precision": "bf16"}
    if how == "fsdp":
        options["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=int(stage), auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
        )
    elif how == "deepspeed":
        options["deepspeed_plugin"] = DeepSpeedPlugin(hf_ds_config=deepspeed_config(int(stage)))
    accelerator = Accelerator(**options)
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    module, optimizer, loader = accelerator.prepare(module, optimizer, DataLoader(examples(), batch_size=8))
    for inputs, labels in loader:
        if how == "deepspeed":
            inputs = inputs.bfloat16()
        loss = nn.functional.cross_entropy(module(inputs), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def with_trainer(how: str, version: str = "2") -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                         num_attention_heads=4, use_cache=False)  # fmt: skip
    options: dict[str, Any] = {}
    if how == "fsdp":
        options["fsdp"] = "full_shard auto_wrap"
        options["fsdp_config"] = {"version": int(version), "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    elif how == "deepspeed":
        options["deepspeed"] = {**deepspeed_config(int(version)), "train_micro_batch_size_per_gpu": 4}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=4, max_steps=3, bf16=True, report_to=[], save_strategy="no",
            disable_tqdm=True, **options,
        )  # fmt: skip
        rows = [{"input_ids": (ids := torch.randint(0, 1000, (64,))), "labels": ids} for _ in range(64)]
        Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows).train()


def with_lightning(strategy: str) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return nn.functional.cross_entropy(self.network(batch[0]).float(), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu", devices=size, strategy=strategy, max_steps=3, precision="bf16-mixed", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(examples(), batch_size=8))


FRAMEWORKS = {
    "deepspeed": with_deepspeed, "accelerate": with_accelerate, "trainer": with_trainer, "lightning": with_lightning,
}  # fmt: skip
FRAMEWORKS[sys.argv[1]](*sys.argv[2:])
said = f"rank {rank}: {torch.cuda.max_memory_allocated()} allocated, {torch.cuda.max_memory_reserved()} reserved"
sys.stdout.write(said + "\n")
sys.stdout.flush()
if dist.is_initialized():
    dist.destroy_process_group()
