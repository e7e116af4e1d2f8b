"""The alternatives that apply to a training job: what to change, how, and at what cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from foretell.advice.survey import Optimizer, Survey
from foretell.records import Gpu
from foretell.versions import ALLOC_CONF_RENAMED, parse_version

_FIRST_BF16 = (8, 0)
_QUANTISED_BLOCK = 256
"""Elements that share one scale, a float32, in the 8-bit states of bitsandbytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    concerns: Literal["activations", "precision", "optimizer", "gradients", "batches", "allocator"]
    """Only one alternative can be used for each of these."""
    title: str
    how: str
    price: str
    words: tuple[str, ...] = ()
    """For `inside/change/alternatives.py`."""
    variables: tuple[tuple[str, str], ...] = ()
    saved_bytes: int | None = None
    """An estimate if it cannot be run here; None: run it."""


def alternatives(
    survey: Survey, gpu: Gpu, torch_version: str, *, least_bytes: int, allocator_settings: str = ""
) -> Iterator[Alternative]:
    """Alternatives that may save `least_bytes`, by the memory they affect; `allocator_settings` are the run's own."""
    if survey.repeated_class is not None and survey.repeated_bytes >= least_bytes:
        yield _checkpointing(survey.repeated_class, survey.repeated_count)
    if not survey.is_autocast and _is_most_in(survey, "float32"):
        yield _autocast(gpu)
    yield from _gradients(survey, least_bytes)
    yield from _optimizers(survey, least_bytes)
    if survey.has_smaller_batch:
        yield Alternative(
            concerns="batches",
            title="drop the smaller last batch",
            how="DataLoader(..., drop_last=True)",
            price="the samples left over at the end of an epoch are skipped",
            words=("drop-last",),
        )
    if not re.search(r"expandable_segments\s*:\s*true", allocator_settings, re.IGNORECASE):
        yield expandable_segments(torch_version, allocator_settings)


def _checkpointing(kind: str, count: int) -> Alternative:
    name = kind.rpartition(".")[2]
    return Alternative(
        concerns="activations",
        title=f"gradient checkpointing of the {count} {name} modules",
        how=f"call each {name} with torch.utils.checkpoint.checkpoint({name.lower()}, x, use_reentrant=False)",
        price=f"the forward pass of each {name} is computed twice: about a third more time",
        words=(f"checkpoint={kind}",),
    )


CHECKPOINTING_OF_MODEL = "model.gradient_checkpointing_enable(), or gradient_checkpointing=True for the Trainer"
"""For models that support it directly."""


def _autocast(gpu: Gpu) -> Alternative:
    has_bf16 = gpu.compute_capability >= _FIRST_BF16
    dtype = "bfloat16" if has_bf16 else "float16"
    scaler = "" if has_bf16 else ", plus torch.amp.GradScaler"
    return Alternative(
        concerns="precision",
        title=f"mixed precision in {dtype}",
        how=f'with torch.autocast("cuda", dtype=torch.{dtype}): around the forward pass and the loss{scaler}',
        price="less precision; faster on tensor cores",
        words=(f"autocast={dtype}",),
    )


def _gradients(survey: Survey, least_bytes: int) -> Iterator[Alternative]:
    if survey.keeps_gradients:
        yield Alternative(
            concerns="gradients",
            title="free gradients instead of zeroing them",
            how="optimizer.zero_grad(set_to_none=True)",
            price="none",
            words=("zero-grad-to-none",),
        )
    if survey.late_gradient_bytes >= least_bytes:
        yield Alternative(
            concerns="gradients",
            title="free gradients before the forward pass",
            how="optimizer.zero_grad() right after optimizer.step()",
            price="none",
            words=("zero-grad-after-step",),
        )


def _optimizers(survey: Survey, least_bytes: int) -> Iterator[Alternative]:
    looping = [each for each in survey.optimizers if each.implementation == "foreach"]
    if any(each.has_fused for each in looping):
        yield Alternative(
            concerns="optimizer",
            title="fused optimizer",
            how=f"{_names(looping)}(..., fused=True)",
            price="none; it is also faster",
            words=("optimizer-implementation=fused",),
        )
    if looping:
        yield Alternative(
            concerns="optimizer",
            title="update one parameter at a time",
            how=f"{_names(looping)}(..., foreach=False)",
            price="a slower optimizer step",
            words=("optimizer-implementation=for-loop",),
        )
    adams = [each for each in survey.optimizers if each.is_adam]
    if sum(each.state_bytes for each in adams) < least_bytes:
        return
    yield Alternative(
        concerns="optimizer",
        title="Adafactor instead of Adam",
        how="torch.optim.Adafactor(...)",
        price="another optimizer: no momentum, factored second moments; results may differ",
        words=("optimizer=adafactor",),
    )
    elements = sum(each.large_state_elements for each in adams)
    quantised = elements + 4 * elements // _QUANTISED_BLOCK
    yield Alternative(
        concerns="optimizer",
        title="8-bit optimizer state",
        how="bitsandbytes.optim.AdamW8bit(...)",
        price="less precise optimizer state; needs another package",
        words=("optimizer=8bit",),
        saved_bytes=None if survey.has_bitsandbytes else sum(each.large_state_bytes for each in adams) - quantised,
    )


def expandable_segments(torch_version: str, allocator_settings: str) -> Alternative:
    is_renamed = ALLOC_CONF_RENAMED.holds_in(parse_version(torch_version))
    name = "PYTORCH_ALLOC_CONF" if is_renamed else "PYTORCH_CUDA_ALLOC_CONF"
    value = ",".join(filter(None, [allocator_settings, "expandable_segments:True"]))
    return Alternative(
        concerns="allocator",
        title="expandable segments",
        how=f"{name}={value}",
        price="little; does not work with CUDA IPC",
        variables=((name, value),),
    )


def _is_most_in(survey: Survey, dtype: str) -> bool:
    sizes = survey.parameter_bytes
    return bool(sizes) and max(sizes, key=sizes.__getitem__) == dtype


def _names(optimizers: list[Optimizer]) -> str:
    return " and ".join(dict.fromkeys(each.kind.rpartition(".")[2] for each in optimizers))
