"""How a card differs from the CPU, as an ordered list of small pure passes: each takes the job and gives its blocks
anew.

What needs no pass, because PyTorch decides it above the devices: when gradients are added in place, when zero_grad lets
go of them, what autograd saves of most operators, and the order in which it frees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

from foretell.cpu import attention, convolutions, kernels, optimizers, parameters, recurrent
from foretell.cpu.analysis import BEFORE, Block, Job
from foretell.cpu.card import Card
from foretell.cpu.explain import PassResult
from foretell.cpu.simulation import peaks

Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    name: str
    what: str
    rewrite: Callable[[Job, Card], Blocks]


def apply(job: Job, card: Card, *, with_peaks: bool = False) -> tuple[Job, tuple[PassResult, ...]]:
    """The job as the card has it; with the peaks after each pass, which take their time."""
    results = []
    if with_peaks:
        results.append(_result("recorded", "every tensor the CPU had", 0, job))
    for each in PASSES:
        before = job.blocks
        job = replace(job, blocks=tuple(sorted(each.rewrite(job, card), key=lambda block: block.born)))
        if with_peaks:
            num_changed = sum((Counter(before) - Counter(job.blocks)).values())
            num_changed = max(num_changed, sum((Counter(job.blocks) - Counter(before)).values()))
            results.append(_result(each.name, each.what, num_changed, job))
    return job, tuple(results)


def _result(name: str, what: str, num_events: int, job: Job) -> PassResult:
    allocated, reserved = peaks(job.blocks)
    return PassResult(
        name=name,
        what=what,
        num_events=num_events,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
    )


# --- what is not on the card ------------------------------------------------------------------------------------------

_SCALAR_BYTES = 8
_SCRATCH_OF_THE_CPU = {
    "aten::convolution", "aten::convolution_backward", "aten::mkldnn_linear", "aten::native_batch_norm",
    "aten::native_batch_norm_backward", "aten::native_layer_norm_backward", "aten::native_group_norm_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", "aten::addmm", "aten::mm", "aten::bmm",
    "aten::embedding_dense_backward",
}  # fmt: skip
"""What takes memory for itself on the CPU: oneDNN's other layouts, columns of images, buffers of threads."""


def drop_host_tensors(job: Job, card: Card) -> Blocks:
    """Made between the steps: only what is still there when the model runs, and what it has an input like, is moved."""
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
            kept.append(block)  # after the last step: whatever it is, it is not part of the training
        elif block.died > moved and (block.num_bytes in inputs or block.num_bytes <= _SCALAR_BYTES):
            # Models and batches are copied one tensor after the other, just before they are used.
            kept.append(replace(block, born=moved - 0.5 + block.born / 2 / (moved + 1)))
    return tuple(kept)


def drop_scalars(job: Job, card: Card) -> Blocks:
    """Numbers that operators wrap into tensors, and the optimizer's step counts, stay on the host."""

    def is_wrapped(block: Block) -> bool:
        if block.num_bytes > _SCALAR_BYTES:
            return False
        if job.phase_of(block) == "optimizer":
            return True
        return block.operator is not None and block.died < job.operators[job.top(block.operator)].end

    return tuple(block for block in job.blocks if not is_wrapped(block))


def drop_scratch(job: Job, card: Card) -> Blocks:
    """What the CPU's own kernels take and give back."""

    def is_scratch(block: Block) -> bool:
        around = (job.operators[at] for at in job.outer(block.operator))
        return any(each.name in _SCRATCH_OF_THE_CPU and block.died <= each.end for each in around)

    return tuple(block for block in job.blocks if not is_scratch(block))


# --- what was there before --------------------------------------------------------------------------------------------


def add_parameters(job: Job, card: Card) -> Blocks:
    """Made before the recording began, they show by their gradients and uses; batch normalization has buffers."""
    trained = parameters.trained(job)
    tensors = [tensor.num_bytes for tensor in (*trained, *parameters.frozen(job, trained))]
    tensors += list(kernels.buffers(job))
    end = job.stretches[-1].end if job.stretches else 0
    made = Counter(b.num_bytes for b in job.blocks if b.died > end and 0 <= b.born < job.first_training_tick)
    missing = []
    for num_bytes in tensors:
        if made[num_bytes]:
            made[num_bytes] -= 1
        else:
            missing.append(num_bytes)
    places = (BEFORE - 1 + at / (len(missing) + 1) for at in range(len(missing)))
    added = tuple(
        Block(num_bytes=num_bytes, born=born, died=inf, operator=None, category="parameter")
        for num_bytes, born in zip(missing, places, strict=True)
    )
    return (*added, *job.blocks)


# --- what operators take ----------------------------------------------------------------------------------------------


def shrink_dropout_masks(job: Job, card: Card) -> Blocks:
    """One byte an element; the CPU has a mask of the input's type, and makes it before the output as well."""
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


def add_kernel_temporaries(job: Job, card: Card) -> Blocks:
    """By operator: what kernels on the card take and give back."""
    return (*job.blocks, *_temporaries(job, card, kernels.TEMPORARIES))


def add_workspaces(job: Job, card: Card) -> Blocks:
    return (
        *job.blocks,
        *_temporaries(job, card, kernels.WORKSPACES),
        *convolutions.workspaces(job, card),
        *kernels.kept_workspaces(job, card),
    )


def _temporaries(job: Job, card: Card, rules: dict[str, kernels.Rule]) -> Iterator[Block]:
    """Taken when the outputs are there, one after the other, and given back together at the operator's end."""
    replaced = attention.replaced_operators(job, card) | recurrent.replaced_operators(job, card)
    for number, operator in enumerate(job.operators):
        rule = rules.get(operator.name)
        if rule is None or number in replaced or not operator.tensors:
            continue
        for at, num_bytes in enumerate(rule(operator, card)):
            born, died = operator.end - 0.5 + at / 1000, operator.end - 0.1 - at / 1000
            yield Block(num_bytes=num_bytes, born=born, died=died, operator=number, category="workspace")


PASSES = (
    Pass(name="host", what="data sets, samples and the building of the model stay on the host; batches are moved",
         rewrite=drop_host_tensors),
    Pass(name="scalars", what="numbers wrapped into tensors and step counts stay on the host", rewrite=drop_scalars),
    Pass(name="cpu-scratch", what="what the CPU's own kernels take: oneDNN's layouts, buffers of threads",
         rewrite=drop_scratch),
    Pass(name="parameters", what="parameters and buffers that were there before the recording", rewrite=add_parameters),
    Pass(name="attention", what="the attention kernel the card chooses, and what it saves", rewrite=attention.rewrite),
    Pass(name="recurrent", what="recurrent nets in one call of cuDNN: what it keeps, and weights in one buffer",
         rewrite=recurrent.rewrite),
    Pass(name="dropout", what="masks of one byte an element", rewrite=shrink_dropout_masks),
    Pass(name="optimizer", what="state from before the recording; lists of temporaries instead of one after the other",
         rewrite=optimizers.rewrite),
    Pass(name="temporaries", what="what kernels on the card take while they run", rewrite=add_kernel_temporaries),
    Pass(name="workspaces", what="cuBLAS and cuDNN", rewrite=add_workspaces),
)  # fmt: skip
