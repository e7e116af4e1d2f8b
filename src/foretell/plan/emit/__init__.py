"""A decision in the words of the tool that carries it out: what to ask a scheduler for, which batch to set.

`emit("slurm", estimate)` is a text that starts with comments on what it is based on. docs/emit.md has an example of
each.
"""

from __future__ import annotations

from collections.abc import Callable

from foretell.errors import UsageError
from foretell.plan.emit.batches import accelerate, lightning, trainer
from foretell.plan.emit.decision import Decision, refuse
from foretell.plan.emit.pods import hami, kai, kubernetes, mig, volcano
from foretell.plan.emit.schedulers import dstack, ray, skypilot, slurm
from foretell.records import Estimate
from foretell.units import GIB

__all__ = ["BATCH_TOOLS", "TOOLS", "emit"]

MEMORY_TOOLS: dict[str, Callable[[Decision], list[str]]] = {
    "slurm": slurm,
    "kubernetes": kubernetes,
    "kai": kai,
    "hami": hami,
    "volcano": volcano,
    "mig": mig,
    "ray": ray,
    "skypilot": skypilot,
    "dstack": dstack,
}
BATCH_TOOLS: dict[str, Callable[[Decision], list[str]]] = {
    "trainer": trainer,
    "lightning": lightning,
    "accelerate": accelerate,
}
"""They need a batch size."""
TOOLS = {**MEMORY_TOOLS, **BATCH_TOOLS}


def emit(
    tool: str,
    estimate: Estimate,
    *,
    batch_size: int | None = None,
    effective_batch: int | None = None,
    shard_bytes: int = GIB,
) -> str:
    """The settings of one of TOOLS. `batch_size`: the largest that fits; `effective_batch`: samples per optimizer step
    that are wanted; `shard_bytes`: of a shard of Slurm. Raises `DoesNotFitError` or `UnsupportedError` if the estimate
    says that the job does not fit, or is incomplete."""
    if tool not in TOOLS:
        raise UsageError(f"unknown tool: {tool!r}. Known: {', '.join(TOOLS)}.")
    refuse(tool, estimate)
    decision = Decision(
        estimate=estimate, batch_size=batch_size, effective_batch=effective_batch, shard_bytes=shard_bytes
    )
    return "\n".join([*decision.comments(), *TOOLS[tool](decision)]) + "\n"
