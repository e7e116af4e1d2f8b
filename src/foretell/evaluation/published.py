"""Single published jobs (published_jobs.csv), and the batch sizes at which timm's benchmark ran and failed on a card of
24 GB (timm_3090_batch_bounds.csv): which script repeats each, and what is known of its campaign."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foretell.evaluation.records import NO_SCRIPT, Case
from foretell.units import MIB

Row = dict[str, str]

A100_2025_CONTEXT_BYTES = 483 * MIB
"""An empty process of the campaign carma-2025, on an A100."""
EAGER_V100_CONTEXT_BYTES = 1343 * MIB
"""An empty process of about 2022 on a V100: CUDA before 11.7 loads all kernels at once."""
_CONTEXTS = {"carma-2025": A100_2025_CONTEXT_BYTES, "hf-docs-v100": EAGER_V100_CONTEXT_BYTES}
_CAMPAIGNS = {"carma-2025": "a100-2025"}


def job(key: str, row: Row) -> Case | None:
    """None: the empty process, from which the context of the others is known."""
    if row["job"].startswith("empty process"):
        return None
    workload, arguments, model = _script(row["job"])
    context_bytes = _CONTEXTS.get(row["source"])
    return Case(
        key=key,
        set="published_jobs",
        workload=workload,
        arguments=arguments,
        gpu=row["gpu"],
        measured_bytes=int(float(row["measured_mib"]) * MIB),
        is_oom=False,
        context_bytes=context_bytes,
        is_context_unknown=context_bytes is None,
        quantity="allocated" if row["quantity"] == "allocated" else "device",
        campaign=_CAMPAIGNS.get(row["source"], row["source"]),
        factors={"model": model, "campaign": row["source"], "quantity": row["quantity"]},
    )


def _script(text: str) -> tuple[str, tuple[str, ...], str]:
    """Workload, its arguments and the model of a described job; NO_SCRIPT for a job of another kind."""
    batch = re.search(r"batch (\d+)", text)
    size = ("--batch-size", batch[1]) if batch else ()
    name = text.split()[1].rstrip(",") if " " in text else text
    if text.startswith("timm ") and "CIFAR" in text:
        return "published_cifar.py", ("--model", name, *size), name
    if text.startswith("torchvision "):
        return "imagenet_cnn.py", ("--model", name, *size, "--last-batch", "15", "--validate"), name
    if text.startswith("bert-large"):
        if "weights moved" in text:
            return "published_bert.py", ("--only-load",), "bert-large"
        return "published_bert.py", (*size, *_bert_options(text)), "bert-large"
    if text.startswith("PowerLM-3b"):
        return "published_granite.py", (*size, *(("--rank", "16") if "LoRA" in text else ())), "PowerLM-3b"
    return NO_SCRIPT, (text,), name


def _bert_options(text: str) -> tuple[str, ...]:
    accumulation = re.search(r"accumulation (\d+)", text)
    return (
        *(("--accumulation", accumulation[1]) if accumulation else ()),
        *(("--checkpointing",) if "checkpointing" in text else ()),
        *(("--optimizer", "Adafactor") if "Adafactor" in text else ()),
        *(("--amp",) if "AMP" in text else ()),
    )


# --- bounds -----------------------------------------------------------------------------------------------------------

BOUNDS = "timm_3090_batch_bounds"
BOUNDS_SCRIPT = "timm_benchmark.py"
BOUNDS_GPU = "rtx-3090"
BOUNDS_CONTEXT_BYTES = EAGER_V100_CONTEXT_BYTES
"""Not measured on that card, but CUDA 11.3 loads all kernels at once as well."""


@dataclass(frozen=True, slots=True)
class Bounds:
    model: str
    image_size: int
    is_channels_last: bool
    ran: int
    failed: int | None
    """None: it ran at the largest batch size that was tried."""

    def arguments(self, batch_size: int) -> tuple[str, ...]:
        words = ("--model", self.model, "--image-size", str(self.image_size), "--batch-size", str(batch_size))
        return (*words, *(("--channels-last",) if self.is_channels_last else ()))


def bounds_of(row: Row) -> Bounds:
    return Bounds(
        model=row["model"],
        image_size=int(row["train_img_size"]),
        is_channels_last=row["layout"] == "nhwc",
        ran=int(row["batch_that_ran"]),
        failed=int(row["next_larger_batch_that_failed"] or 0) or None,
    )


def decisions(key: str, row: Row) -> Iterator[Case]:
    """Two runs of which only is known whether they fitted: the one that did, and the next larger one that failed."""
    bounds = bounds_of(row)
    for batch_size, suffix in ((bounds.ran, ""), (bounds.failed, "/failed")):
        if batch_size is not None:
            yield Case(
                key=key + suffix,
                set=BOUNDS,
                workload=BOUNDS_SCRIPT,
                arguments=bounds.arguments(batch_size),
                gpu=BOUNDS_GPU,
                measured_bytes=0,
                is_oom=bool(suffix),
                context_bytes=BOUNDS_CONTEXT_BYTES,
                quantity="decision",
                campaign="timm-3090",
                factors={"model": bounds.model.split("_")[0], "layout": row["layout"]},
            )
