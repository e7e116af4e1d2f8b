"""Batch settings of training frameworks: the largest batch that fits, accumulated to the effective batch wanted."""

from __future__ import annotations

from typing import NamedTuple

from foretell.errors import UsageError
from foretell.plan.emit.decision import Decision, comment


class Batch(NamedTuple):
    size: int
    num_accumulated: int

    def __str__(self) -> str:
        return f"{self.size} x {self.num_accumulated} = {self.size * self.num_accumulated}"


def trainer(decision: Decision) -> list[str]:
    """https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments"""
    batch = batch_of(decision)
    return [
        *_about(decision, batch),
        "from transformers import TrainingArguments",
        "",
        "arguments = TrainingArguments(",
        f"    per_device_train_batch_size={batch.size},",
        f"    gradient_accumulation_steps={batch.num_accumulated},",
        ")",
    ]


def lightning(decision: Decision) -> list[str]:
    """https://lightning.ai/docs/pytorch/stable/common/trainer.html#accumulate-grad-batches"""
    batch = batch_of(decision)
    return [
        *_about(decision, batch),
        "from lightning import Trainer",
        "",
        f"batch_size = {batch.size}  # of the DataLoader",
        f"trainer = Trainer(accumulate_grad_batches={batch.num_accumulated})",
    ]


def accelerate(decision: Decision) -> list[str]:
    """In code, because `accelerate config` has neither: --gradient_accumulation_steps of `accelerate launch` is for
    DeepSpeed (https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation)."""
    batch = batch_of(decision)
    return [
        *_about(decision, batch),
        "from accelerate import Accelerator",
        "",
        f"batch_size = {batch.size}  # of the DataLoader",
        f"accelerator = Accelerator(gradient_accumulation_steps={batch.num_accumulated})",
    ]


def batch_of(decision: Decision) -> Batch:
    """The largest batch that fits and divides the effective batch, so that this is kept exactly."""
    most, wanted = decision.batch_size, decision.effective_batch
    if most is None:
        raise UsageError("batch settings need the batch size that `foretell max-batch` finds.")
    if wanted is None:
        return Batch(most, 1)
    size = next(size for size in range(min(most, wanted), 0, -1) if wanted % size == 0)
    return Batch(size, wanted // size)


def _about(decision: Decision, batch: Batch) -> list[str]:
    most, wanted = decision.batch_size, decision.effective_batch
    assert most is not None
    lines = [f"{most} is the largest batch that was found to fit."]
    if wanted is None:
        lines.append("--effective-batch N adds the accumulation that makes it N samples per optimizer step.")
    else:
        lines.append(f"{batch} samples per optimizer step, on 1 GPU. On several, accumulate less.")
        if batch.size * 2 <= min(most, wanted):
            near = Batch(most, max(1, round(wanted / most)))
            lines.append(f"No larger batch divides {wanted}: an effective batch of {near} would be faster.")
    if batch.num_accumulated > 1:
        lines.append("Accumulation holds gradients through the forward pass: run foretell again with these settings.")
    return [comment(line) for line in lines]
