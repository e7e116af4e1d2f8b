"""Infers a model's parameters from its operators: a profile does not identify tensors, and most models are built before
the recording."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import chain, takewhile

from foretell.engines.imported.analysis import RecordedJob
from foretell.engines.imported.cpu_profile import Operator, Tensor

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_FLOAT_BYTES = 4
_WEIGHT_ARGUMENT = {"aten::linear": 1, "aten::convolution": 1, "aten::embedding": 0}


def trained(job: RecordedJob) -> tuple[Tensor, ...]:
    """One parameter per gradient, from the first layer to the last. Of each shape, the most that one backward pass
    accumulated: a step may skip some."""
    passes: dict[int, list[Tensor]] = {}
    for operator in job.operators:
        if operator.name == _ACCUMULATE and operator.tensors:
            passes.setdefault(_stretch(job, operator), []).append(operator.tensors[0])
    found = list(_most_at_once(passes)) or list(_without_shapes(job))
    return tuple(reversed(found))


def _stretch(job: RecordedJob, operator: Operator) -> int:
    return bisect_right(job.stretches, operator.begin, key=lambda stretch: stretch.begin)


def _most_at_once(passes: dict[int, list[Tensor]]) -> Iterator[Tensor]:
    counts: Counter[Tensor] = Counter()
    for each in passes.values():
        counts |= Counter(each)
    for tensor in chain.from_iterable(passes.values()):
        if counts[tensor]:
            counts[tensor] -= 1
            yield tensor


def _without_shapes(job: RecordedJob) -> Iterator[Tensor]:
    """Blocks that outlive the first backward pass."""
    first = next((stretch for stretch in job.stretches if stretch.phase == "backward"), None)
    if first is not None:
        for block in job.blocks:
            if first.begin < block.born < first.end < block.died and block.num_bytes >= _FLOAT_BYTES:
                yield Tensor(shape=(block.num_bytes // _FLOAT_BYTES,), element="float")


def frozen(job: RecordedJob, trained_tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Weights that are used but get no gradient, as many as one forward pass uses; one used twice is counted twice.

    Without autograd (`no_grad`) no weight gets a gradient; then only shapes that are never trained count.
    """
    shapes = {tensor.shape for tensor in trained_tensors}
    passes: dict[int, list[Tensor]] = {}
    for number, operator in enumerate(job.operators):
        at = _WEIGHT_ARGUMENT.get(operator.name)
        weight = operator.inputs[at] if at is not None and len(operator.inputs) > at else None
        if weight is None or job.phases[number] not in ("forward", "evaluation"):
            continue
        is_frozen = weight.shape not in shapes if operator.sequence is None else not _gets_gradient(job, number)
        if is_frozen:
            passes.setdefault(_stretch(job, operator), []).append(weight)
    return tuple(_most_at_once(passes))


def _gets_gradient(job: RecordedJob, number: int) -> bool:
    operator = job.operators[number]
    if operator.name == "aten::linear":  # it transposes the weight, and the transpose has the node
        inside = takewhile(lambda at: job.operators[at].begin < operator.end, range(number, len(job.operators)))
        return any(at in job.nodes and job.nodes[at].name.endswith(("TBackward0", "LinearBackward0")) for at in inside)
    node = job.nodes.get(number)
    if node is None or operator.name == "aten::embedding":
        return node is not None
    after = bisect_right(job.operators, node.begin, key=lambda each: each.begin)
    backward = next((o for o in job.operators[after:] if o.name == "aten::convolution_backward"), None)
    wanted = re.findall("True|False", backward.values[-1]) if backward is not None and backward.values else []
    return "False" not in wanted[1:2]
