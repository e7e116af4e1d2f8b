"""Differences between a card and the CPU, as an ordered list of small pure passes: each takes the job and returns its
new blocks.

No pass is needed for what PyTorch decides independently of the device: when gradients are added in place, when
zero_grad frees them, what autograd saves for most operators, and in which order it frees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from foretell.engines.imported import (
    attention_calls,
    convolution_calls,
    kernel_memory,
    optimizers,
    parameters,
    recurrent_calls,
)
from foretell.engines.imported.analysis import JobBlock, RecordedJob
from foretell.engines.imported.card import Card
from foretell.engines.imported.explain import PassResult
from foretell.engines.imported.moments import BEFORE, NEVER, START, AtBegin, AtEnd, before
from foretell.engines.imported.simulation import peaks
from foretell.records import Category

Blocks = tuple[JobBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    name: str
    what: str
    rewrite: Callable[[RecordedJob, Card], Blocks]
    explained: Callable[[RecordedJob, Card], str] = lambda job, card: ""
    """The decisions for this job, as text."""


def apply(job: RecordedJob, card: Card, *, with_peaks: bool = False) -> tuple[RecordedJob, tuple[PassResult, ...]]:
    """Return the job as the card runs it, and on request the peaks after each pass, which take time to compute."""
    results = []
    if with_peaks:
        results.append(_result("recorded", "every tensor recorded on the CPU", 0, job))
    for each in PASSES:
        before = job.blocks
        job = replace(job, blocks=tuple(sorted(each.rewrite(job, card), key=lambda block: block.born)))
        if with_peaks:
            num_changed = sum((Counter(before) - Counter(job.blocks)).values())
            num_changed = max(num_changed, sum((Counter(job.blocks) - Counter(before)).values()))
            decided = each.explained(job, card)
            what = f"{each.what}: {decided}" if decided else each.what
            results.append(_result(each.name, what, num_changed, job))
    return job, tuple(results)


def _result(name: str, what: str, num_events: int, job: RecordedJob) -> PassResult:
    allocated, reserved = peaks(job.blocks)
    return PassResult(
        name=name,
        what=what,
        num_events=num_events,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
    )


# --- not on the card --------------------------------------------------------------------------------------------------

_SCALAR_BYTES = 8
_SCRATCH_OF_THE_CPU = {
    "aten::convolution", "aten::convolution_backward", "aten::mkldnn_linear", "aten::native_batch_norm",
    "aten::native_batch_norm_backward", "aten::native_layer_norm_backward", "aten::native_group_norm_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", "aten::addmm", "aten::mm", "aten::bmm",
    "aten::embedding_dense_backward",
}  # fmt: skip
"""Operators with CPU-only scratch memory: oneDNN's layouts, image columns, thread buffers."""


def drop_host_tensors(job: RecordedJob, card: Card) -> Blocks:
    """Drop tensors made between steps, except those moved to the card: still alive when the model runs, and as large as
    one of its inputs."""
    has_shapes = any(operator.inputs for operator in job.operators)
    inputs = {
        tensor.num_bytes
        for operator, phase in zip(job.operators, job.phases, strict=True)
        if phase in ("forward", "evaluation")
        for tensor in operator.tensors
    }
    inputs |= {block.num_bytes for block in job.blocks if not has_shapes}
    kept = []
    for block in job.blocks:
        if job.phase_of(block) != "other" or block.born == BEFORE:
            kept.append(block)
            continue
        moved = job.next_compute(block.born)
        if moved is None:
            kept.append(block)  # after the last step: not part of the training
        elif block.died > moved and (block.num_bytes in inputs or block.num_bytes <= _SCALAR_BYTES):
            # Models and batches are copied tensor by tensor, just before use.
            kept.append(replace(block, born=before(moved, AtBegin.MOVED, *block.born)))
    return tuple(kept)


def drop_scalars(job: RecordedJob, card: Card) -> Blocks:
    """Drop numbers that operators wrap in tensors, and the optimizer's step counts: they stay on the host."""

    def is_wrapped(block: JobBlock) -> bool:
        if block.num_bytes > _SCALAR_BYTES:
            return False
        if job.phase_of(block) == "optimizer":
            return True
        return block.operator is not None and block.died < job.operators[job.top(block.operator)].end

    return tuple(block for block in job.blocks if not is_wrapped(block))


def drop_scratch(job: RecordedJob, card: Card) -> Blocks:
    """Drop temporaries of the CPU's own kernels."""

    def is_scratch(block: JobBlock) -> bool:
        around = (job.operators[at] for at in job.outer(block.operator))
        return any(each.name in _SCRATCH_OF_THE_CPU and block.died <= each.end for each in around)

    return tuple(block for block in job.blocks if not is_scratch(block))


# --- older than the recording -----------------------------------------------------------------------------------------


def add_parameters(job: RecordedJob, card: Card) -> Blocks:
    """Add parameters made before the recording, inferred from gradients and uses, and buffers of batch
    normalization."""
    trained = parameters.trained(job)
    wanted: list[tuple[int, Category]] = [
        *((tensor.num_bytes, "parameter") for tensor in (*trained, *parameters.frozen(job, trained))),
        *((num_bytes, "buffer") for num_bytes in kernel_memory.buffers(job)),
    ]
    end = job.stretches[-1].end if job.stretches else START
    blocks = list(job.blocks)
    made: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        if block.died > end and START <= block.born < job.first_training_tick:
            made.setdefault(block.num_bytes, []).append(number)
    missing = []
    for num_bytes, category in wanted:
        if made.get(num_bytes):
            number = made[num_bytes].pop(0)
            blocks[number] = replace(blocks[number], category=category)
        else:
            missing.append((num_bytes, category))
    added = (
        JobBlock(num_bytes=num_bytes, born=before(BEFORE, at), died=NEVER, operator=None, category=category)
        for at, (num_bytes, category) in enumerate(missing)
    )
    return (*added, *blocks)


# --- memory of operators ----------------------------------------------------------------------------------------------


def shrink_dropout_masks(job: RecordedJob, card: Card) -> Blocks:
    """Shrink masks to one byte per element; the CPU's have the input's type and are also made before the output."""
    masks: set[int] = set()
    blocks = []
    for block in job.blocks:
        kernel = job.within(block.operator, "aten::dropout")
        if kernel is not None and kernel not in masks and job.operators[kernel].tensors:
            tensor = job.operators[kernel].tensors[0]
            if block.num_bytes == tensor.num_bytes:
                masks.add(kernel)
                block = replace(block, num_bytes=tensor.num_elements)
        blocks.append(block)
    return tuple(blocks)


def add_kernel_temporaries(job: RecordedJob, card: Card) -> Blocks:
    """Add temporaries of the card's kernels, by operator."""
    return (*job.blocks, *_temporaries(job, card, kernel_memory.TEMPORARIES, "temporary"))


def add_workspaces(job: RecordedJob, card: Card) -> Blocks:
    return (
        *job.blocks,
        *_temporaries(job, card, kernel_memory.WORKSPACES, "workspace"),
        *convolution_calls.workspaces(job, card),
        *kernel_memory.kept_workspaces(job, card),
    )


def _temporaries(
    job: RecordedJob, card: Card, rules: dict[str, kernel_memory.Rule], category: Category
) -> Iterator[JobBlock]:
    """Allocated one after the other once the outputs exist, and freed together at the operator's end."""
    replaced = attention_calls.replaced_operators(job, card) | recurrent_calls.replaced_operators(job, card)
    for number, operator in enumerate(job.operators):
        rule = rules.get(operator.name)
        if rule is None or number in replaced or not operator.tensors:
            continue
        for at, num_bytes in enumerate(rule(operator, card)):
            yield JobBlock(
                num_bytes=num_bytes,
                born=before(operator.end, AtEnd.TAKEN, at),
                died=before(operator.end, AtEnd.GIVEN_BACK, -at),
                operator=number,
                category=category,
            )


PASSES = (
    Pass(name="host", what="datasets, samples and model construction stay on the host; batches are moved to the GPU",
         rewrite=drop_host_tensors),
    Pass(name="scalars", what="scalar tensors and step counts stay on the host", rewrite=drop_scalars),
    Pass(name="cpu-scratch", what="remove scratch memory of CPU kernels: oneDNN layouts, per-thread buffers",
         rewrite=drop_scratch),
    Pass(name="parameters", what="parameters and buffers created before the recording", rewrite=add_parameters),
    Pass(name="attention", what="the attention kernel of the GPU, and what it saves",
         rewrite=attention_calls.rewrite, explained=attention_calls.explained),
    Pass(name="recurrent", what="recurrent layers as one cuDNN call: its saved tensors, and weights in one buffer",
         rewrite=recurrent_calls.rewrite),
    Pass(name="dropout", what="masks of one byte per element", rewrite=shrink_dropout_masks),
    Pass(name="optimizer", what="state created before the recording; temporaries of all parameters at once",
         rewrite=optimizers.rewrite),
    Pass(name="temporaries", what="temporary memory of GPU kernels", rewrite=add_kernel_temporaries),
    Pass(name="workspaces", what="cuBLAS and cuDNN", rewrite=add_workspaces),
)  # fmt: skip
