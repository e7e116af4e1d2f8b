"""Optimizers. On the CPU they update one parameter after the other, on a card all at once (foreach=None): the results
of each step of the computation are lists as long as the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretell.engines.imported import parameters
from foretell.engines.imported.analysis import JobBlock, OptimizerStep, RecordedJob
from foretell.engines.imported.card import Card
from foretell.engines.imported.moments import BEFORE, NEVER, AtEnd, after, before


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreach:
    """How torch.optim's _multi_tensor_* differs from _single_tensor_*, found on the virtual GPU with torch 2.15.0."""

    lists: tuple[str, ...]
    """Operators of the CPU's loop whose results all exist at once. State is not included."""
    num_states: int
    """State tensors of the parameter's size."""
    max_lists: int | None = None
    """SGD adds Nesterov's momentum in place, unlike its loop."""


OPTIMIZERS = {
    "SGD": Foreach(lists=("aten::add", "aten::neg"), num_states=0, max_lists=1),
    "Adam": Foreach(lists=("aten::sqrt",), num_states=2),
    "AdamW": Foreach(lists=("aten::sqrt",), num_states=2),
    "NAdam": Foreach(lists=("aten::sqrt", "aten::add", "aten::neg"), num_states=2),
    "RMSprop": Foreach(lists=("aten::sqrt", "aten::add", "aten::neg"), num_states=1),
    "Adagrad": Foreach(lists=("aten::sqrt", "aten::sqrt"), num_states=1),
    "Adadelta": Foreach(lists=("aten::add", "aten::neg"), num_states=2),
}
SINGLE = {"Adafactor", "Muon", "SparseAdam", "LBFGS"}
"""Optimizers that loop on a card as well."""


def rewrite(job: RecordedJob, card: Card) -> tuple[JobBlock, ...]:
    blocks = list(job.blocks)
    for step in job.optimizer_steps:
        foreach = OPTIMIZERS.get(step.name)
        if foreach is not None and not _is_foreach(job, step):
            blocks = [b for b in blocks if not (b.category == "temporary" and step.begin < b.born < step.end)]
            blocks += _lists(job, step, foreach)
    return (*_state_from_before(job), *blocks)


def unknown_optimizers(job: RecordedJob) -> set[str]:
    return {
        step.name
        for step in job.optimizer_steps
        if step.name not in OPTIMIZERS and step.name not in SINGLE and not _is_foreach(job, step)
    }


def _is_foreach(job: RecordedJob, step: OptimizerStep) -> bool:
    """True if the script asked for foreach, so the CPU had the lists as well; or for fused=True, which needs none."""
    return any(
        step.begin < operator.begin < step.end and operator.name.startswith(("aten::_foreach_", "aten::_fused_"))
        for operator in job.operators
    )


def _lists(job: RecordedJob, step: OptimizerStep, foreach: Foreach) -> Iterator[JobBlock]:
    made = [b for b in job.blocks if b.category == "temporary" and step.begin < b.born < step.end]
    held: list[JobBlock] = []
    for name in foreach.lists:
        held += [b for b in made if b.operator is not None and job.operators[b.operator].name == name]
    if foreach.max_lists is not None:
        held = list(_at_most(held, foreach.max_lists, job))
    for at, block in enumerate(held):
        yield replace(block, born=after(held[0].born, at), died=before(step.end, AtEnd.GIVEN_BACK, -at))


def _at_most(held: list[JobBlock], max_lists: int, job: RecordedJob) -> Iterator[JobBlock]:
    left = Counter(tensor.num_bytes for tensor in parameters.trained(job) for _ in range(max_lists))
    for block in held:
        left[block.num_bytes] -= 1
        if left[block.num_bytes] >= 0:
            yield block


def _state_from_before(job: RecordedJob) -> Iterator[JobBlock]:
    """Optimizer state older than the recording: the first step of a job creates it, so if the first recorded step does
    not, it already existed."""
    if not job.optimizer_steps:
        return
    first = job.optimizer_steps[0]
    foreach = OPTIMIZERS.get(first.name)
    trained = parameters.trained(job)
    largest = max((tensor.num_bytes for tensor in trained), default=0)
    makes_state = any(
        b.category == "optimizer_state" and first.begin < b.born < first.end and b.num_bytes >= largest
        for b in job.blocks
    )
    if foreach is None or makes_state:
        return
    num_states = 1 if _has_momentum(job, first) else foreach.num_states
    tensors = [tensor for tensor in trained for _ in range(num_states)]
    for at, tensor in enumerate(tensors):
        yield JobBlock(
            num_bytes=tensor.num_bytes, born=after(BEFORE, at), died=NEVER, operator=None, category="optimizer_state"
        )


def _has_momentum(job: RecordedJob, step: OptimizerStep) -> bool:
    """SGD multiplies its buffers with the momentum before it adds to them."""
    return step.name == "SGD" and any(
        step.begin < operator.begin < step.end and operator.name == "aten::mul_" for operator in job.operators
    )
