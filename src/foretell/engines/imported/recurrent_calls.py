"""Recurrent nets. The CPU computes them layer by layer (oneDNN) or step by step, a card in one cuDNN call. The blocks
of the parts are replaced by those PyTorch's CUDA code (ATen/native/cudnn/RNN.cpp) makes around that call. cuDNN's
workspace and reserve sizes are not documented; the virtual GPU's assumptions apply (rules/recurrent.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod

from foretell.engines.imported import parameters
from foretell.engines.imported.analysis import JobBlock, RecordedJob, Span
from foretell.engines.imported.card import Card
from foretell.engines.imported.cpu_profile import Operator, Tensor
from foretell.engines.imported.moments import NEVER, AtBegin, Moment, after, before
from foretell.records import Category
from foretell.rules.recurrent import Kind, dropout_states, recurrent_reserve, recurrent_workspace

_KINDS: dict[str, Kind] = {
    "aten::lstm": "lstm", "aten::gru": "gru", "aten::rnn_tanh": "rnn", "aten::rnn_relu": "rnn"
}  # fmt: skip
_COMPUTE = ("aten::mkldnn_rnn_layer", "aten::linear")
_NUM_VALUES = 5
"""Has biases, layers, dropout, training, bidirectional; for a batch that is not packed also: batch first."""


class _Forward(IntEnum):
    """Allocations and frees of _cudnn_rnn, in its order."""

    X = 1
    """A copy with steps as the first dimension."""
    RESULTS = 2
    WORKSPACE = 3
    RESERVE = 4
    WORKSPACE_FREED = 5
    X_FREED = 6
    RESERVE_FREED = 7
    RESULTS_FREED = 8


class _Backward(IntEnum):
    """Allocations and frees of _cudnn_rnn_backward, in its order."""

    ZEROS = 1
    """For missing gradients of the states."""
    X = 2
    GRADIENT = 3
    """Gradient of the output: a copy, or zeros."""
    DX = 4
    STATES = 5
    """Gradients of the states."""
    WORKSPACE = 6
    WORKSPACE_FREED = 7
    GRADIENT_FREED = 8
    X_FREED = 9
    X_AGAIN = 10
    WEIGHTS = 11
    """Gradients of the weights."""
    WORKSPACE_AGAIN = 12
    WORKSPACE_AGAIN_FREED = 13
    X_AGAIN_FREED = 14
    ZEROS_FREED = 15
    ZERO_GRADIENT_FREED = 16
    DX_FREED = 17
    STATES_FREED = 18
    SAVED_FREED = 19
    """Blocks the forward pass kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """One call. A packed batch has the samples of all steps in one dimension."""

    kind: Kind
    x_bytes: int
    out_bytes: int
    state_bytes: tuple[int, ...]
    """Hidden state and, for an LSTM, cell state."""
    parameters: tuple[int, ...]
    """Sizes in bytes."""
    workspace_bytes: int
    reserve_bytes: int
    """0 if nothing is kept for a backward pass."""
    has_dropout: bool
    copies_x: bool
    """The input is batch first: cuDNN gets a copy with steps first."""
    is_steps_first: bool
    """Also holds for the gradient of the output, if any."""


def net_of(operator: Operator, card: Card) -> Net | None:
    """None for other operators, or if shapes or values were not recorded."""
    kind = _KINDS.get(operator.name)
    values = operator.values[3:]
    is_packed = bool(values) and values[0] == ""
    values = values[1:] if is_packed else values
    num_states = 2 if kind == "lstm" else 1
    first_state = 2 if is_packed else 1
    weights = operator.tensors[first_state + num_states :]
    if kind is None or len(values) < _NUM_VALUES or not values[1].isdecimal() or not weights:
        return None
    x, states = operator.tensors[0], operator.tensors[first_state:][:num_states]
    is_batch_first = values[5:6] == ("True",)
    steps = operator.tensors[1].shape[0] if is_packed else x.shape[1 if is_batch_first else 0]
    batch, width, hidden = states[0].shape[1], states[0].shape[2], states[-1].shape[2]
    layers, directions = int(values[1]), 2 if values[4] == "True" else 1
    is_training = values[3] == "True"
    has_dropout = is_training and float(values[2]) > 0
    size = x.element_bytes
    if x.element == "c10::BFloat16" and card.gpu.compute_capability < (8, 0):
        return None  # not supported by cuDNN
    reserve = recurrent_reserve(
        kind,
        samples=steps * batch,
        hidden=hidden,
        projection=width if width != hidden else 0,
        layers=layers,
        directions=directions,
        has_dropout=has_dropout,
        element_bytes=size,
    )
    return Net(
        kind=kind,
        x_bytes=x.num_bytes,
        out_bytes=prod(x.shape[:-1]) * width * directions * size,
        state_bytes=tuple(state.num_elements * size for state in states),
        parameters=tuple(weight.num_elements * size for weight in weights),
        workspace_bytes=recurrent_workspace(
            kind, samples=steps * batch, hidden=hidden, directions=directions, element_bytes=size
        ),
        reserve_bytes=reserve if is_training else 0,
        has_dropout=has_dropout,
        copies_x=not is_packed and _is_copied(x, is_batch_first),
        is_steps_first=not is_batch_first or min(steps, batch) == 1,
    )


def _is_copied(x: Tensor, is_batch_first: bool) -> bool:
    """Whether its memory order is not steps first."""
    order = (1, 0, 2) if is_batch_first else (0, 1, 2)
    strides = x.strides or (x.shape[1] * x.shape[2], x.shape[2], 1)
    packed = 1
    for dimension in reversed(order):
        if x.shape[dimension] > 1 and strides[dimension] != packed:
            return True
        packed *= x.shape[dimension]
    return False


def rewrite(job: RecordedJob, card: Card) -> tuple[JobBlock, ...]:
    nets = dict(_nets(job, card))
    trained = {tensor.num_bytes for tensor in parameters.trained(job)}
    blocks = job.blocks
    for number, net in nets.items():
        is_trained = any(num_bytes in trained for num_bytes in net.parameters)
        blocks = tuple(sorted(_by_cudnn(replace(job, blocks=blocks), number, net, is_trained), key=lambda b: b.born))
    blocks = tuple(_flattened(replace(job, blocks=blocks), nets))
    first = next((number for number, net in nets.items() if net.has_dropout), None)
    if first is not None:
        num_bytes = dropout_states(card.gpu.num_sms, card.gpu.threads_per_sm)
        born = before(job.operators[first].begin, AtBegin.DROPOUT_STATES)
        blocks += (JobBlock(num_bytes=num_bytes, born=born, died=NEVER, operator=first, category="workspace"),)
    return blocks


def replaced_operators(job: RecordedJob, card: Card) -> set[int]:
    """Operators that a card fuses into one call, forward and backward."""
    replaced: set[int] = set()
    for number, _ in _nets(job, card):
        backward = job.backward_of(number)
        replaced |= {*job.parts(number), *(job.numbers(backward) if backward is not None else ())}
    return replaced


def _nets(job: RecordedJob, card: Card) -> Iterator[tuple[int, Net]]:
    """The recurrent nets to rewrite. Those under autocast, whose weights a card copies, stay as the CPU ran them."""
    for number, operator in enumerate(job.operators):
        net = net_of(operator, card)
        if net is None:
            continue
        computed = (job.operators[at] for at in job.parts(number) if job.operators[at].name in _COMPUTE)
        if all(part.tensors[0].element == operator.tensors[0].element for part in computed if part.tensors):
            yield number, net


def _by_cudnn(job: RecordedJob, number: int, net: Net, is_trained: bool) -> Iterator[JobBlock]:
    operator = job.operators[number]
    forward = Span(begin=operator.begin, end=operator.end)
    backward = job.backward_of(number)
    saved_until = forward.end if backward is None else before(backward.end, _Backward.SAVED_FREED)
    results = _results(job, forward, net)
    saved = _newest(job, forward.begin, (net.x_bytes, *net.state_bytes)) if backward is not None else []
    gradients = _gradients(job, backward, net) if backward is not None else []
    for block in job.blocks:
        if forward.holds(block.born) or block in gradients:
            continue
        if backward is not None and backward.holds(block.born) and block.died < backward.end:
            continue
        is_used = backward is not None and backward.holds(block.died)
        if is_used or (block in saved and block.died < saved_until):
            block = replace(block, died=saved_until)  # freed by the single autograd node
        yield block
    yield from _forward(number, net, forward.end, results, saved_until if backward is not None else None)
    if backward is not None:
        arrived = Span(begin=forward.end, end=backward.begin)
        kept = [b for b in job.blocks if backward.holds(b.born) and b.died > backward.end and b not in gradients]
        yield from _backward(
            number,
            net,
            backward.end,
            has_dx=any(block.num_bytes == net.x_bytes for block in kept),
            gets_gradient=_gets_gradient(job, results[0]),
            copies_gradient=not (net.is_steps_first and _is_there(job, arrived, backward, net.out_bytes)),
            gradients_until=max((b.died for b in gradients), default=saved_until) if is_trained else None,
        )


def _forward(
    number: int, net: Net, end: Moment, results: list[JobBlock | None], saved_until: Moment | None
) -> Iterator[JobBlock]:
    """Follow the order of _cudnn_rnn: a copy of x, the results, workspace, reserve."""
    if net.copies_x:
        yield _block(net.x_bytes, before(end, _Forward.X), before(end, _Forward.X_FREED), number)
    deaths = [before(end, _Forward.RESULTS_FREED) if block is None else block.died for block in results]
    if saved_until is not None:
        deaths[0] = max(deaths[0], saved_until)
    for at, (num_bytes, died) in enumerate(zip((net.out_bytes, *net.state_bytes), deaths, strict=True)):
        yield _block(num_bytes, before(end, _Forward.RESULTS, at), died, number, "activation")
    workspace = before(end, _Forward.WORKSPACE), before(end, _Forward.WORKSPACE_FREED)
    yield _block(net.workspace_bytes, *workspace, number, "workspace")
    if net.reserve_bytes:
        died = before(end, _Forward.RESERVE_FREED) if saved_until is None else saved_until
        yield _block(net.reserve_bytes, before(end, _Forward.RESERVE), died, number, "activation")


def _backward(
    number: int,
    net: Net,
    end: Moment,
    *,
    has_dx: bool,
    gets_gradient: bool,
    copies_gradient: bool,
    gradients_until: Moment | None,
) -> Iterator[JobBlock]:
    """Follow the order of _cudnn_rnn_backward: zeros for missing gradients (assumed for the states); the gradients of x
    and the states; then those of the weights, which share one buffer."""

    def block(
        num_bytes: int, taken: _Backward, freed: _Backward, at: int = 0, category: Category = "temporary"
    ) -> JobBlock:
        return _block(num_bytes, before(end, taken, at), before(end, freed), number, category)

    for at, num_bytes in enumerate(net.state_bytes):
        yield block(num_bytes, _Backward.ZEROS, _Backward.ZEROS_FREED, at)
        yield block(num_bytes, _Backward.STATES, _Backward.STATES_FREED, at)
    if net.copies_x:
        yield block(net.x_bytes, _Backward.X, _Backward.X_FREED)
    if copies_gradient or not gets_gradient:
        freed = _Backward.GRADIENT_FREED if gets_gradient else _Backward.ZERO_GRADIENT_FREED
        yield block(net.out_bytes, _Backward.GRADIENT, freed)
    if not has_dx:
        yield block(net.x_bytes, _Backward.DX, _Backward.DX_FREED)
    yield block(net.workspace_bytes, _Backward.WORKSPACE, _Backward.WORKSPACE_FREED, category="workspace")
    if gradients_until is None:
        return
    if net.copies_x:
        yield block(net.x_bytes, _Backward.X_AGAIN, _Backward.X_AGAIN_FREED)
    yield _block(sum(net.parameters), before(end, _Backward.WEIGHTS), gradients_until, number, "gradient")
    yield block(net.workspace_bytes, _Backward.WORKSPACE_AGAIN, _Backward.WORKSPACE_AGAIN_FREED, category="workspace")


def _block(num_bytes: int, born: Moment, died: Moment, operator: int, category: Category = "temporary") -> JobBlock:
    return JobBlock(num_bytes=num_bytes, born=born, died=died, operator=operator, category=category)


def _results(job: RecordedJob, forward: Span, net: Net) -> list[JobBlock | None]:
    """The output and states the CPU returned: the last blocks of their sizes, or None if freed."""
    left = [block for block in job.blocks if forward.holds(block.born) and block.died > forward.end]
    found: list[JobBlock | None] = []
    for num_bytes in (net.out_bytes, *net.state_bytes):
        block = next((each for each in reversed(left) if each.num_bytes == num_bytes), None)
        if block is not None:
            left.remove(block)
        found.append(block)
    return found


def _newest(job: RecordedJob, tick: Moment, sizes: Iterable[int]) -> list[JobBlock]:
    """For each size, the newest block alive at that tick."""
    wanted = Counter(sizes)
    found = []
    for block in reversed(job.blocks[: bisect_right(job.blocks, tick, key=lambda each: each.born)]):
        if wanted[block.num_bytes] and block.died > tick:
            wanted[block.num_bytes] -= 1
            found.append(block)
    return found


def _gets_gradient(job: RecordedJob, out: JobBlock | None) -> bool:
    """Whether the output gets a gradient. If the model goes on with the states alone, none or an undefined one comes
    back."""
    maker = None if out is None else next((at for at in job.outer(out.operator) if at in job.nodes), None)
    if maker is None:
        return False
    (begin,) = job.nodes[maker].begin
    node = next((job.operators[at] for at in job.numbers(Span(begin=(begin + 1,), end=(begin + 2,)))), None)
    return node is None or not node.inputs or node.inputs[0] is not None


def _is_there(job: RecordedJob, arrived: Span, used: Span, num_bytes: int) -> bool:
    """Whether the incoming gradient has memory of its own; one expanded from a scalar does not."""
    return any(b.num_bytes == num_bytes and arrived.holds(b.born) and used.holds(b.died) for b in job.blocks)


def _gradients(job: RecordedJob, backward: Span, net: Net) -> list[JobBlock]:
    """Parameter gradients that the CPU made one by one. They stay, or are added to existing ones; in that case the
    gradient of x may look the same."""
    wanted = Counter(net.parameters)
    found = []
    for block in job.blocks:
        is_left = block.died > backward.end and block.num_bytes != net.x_bytes
        if backward.holds(block.born) and (is_left or block.category == "gradient") and wanted[block.num_bytes]:
            wanted[block.num_bytes] -= 1
            found.append(block)
    return found


def _flattened(job: RecordedJob, nets: dict[int, Net]) -> Iterator[JobBlock]:
    """The module moves its parameters into one buffer as soon as they are on the card."""
    passes: dict[int, Counter[tuple[int, ...]]] = {}
    for number, net in nets.items():
        stretch = bisect_right(job.stretches, job.operators[number].begin, key=lambda each: each.begin)
        passes.setdefault(stretch, Counter())[net.parameters] += 1
    modules: Counter[tuple[int, ...]] = Counter()
    for each in passes.values():
        modules |= each
    there = [block for block in job.blocks if block.born < job.first_training_tick and block.died == NEVER]
    moved: dict[JobBlock, Moment] = {}
    for sizes in modules.elements():
        parts = list(_taken(there, sizes, moved))
        if len(parts) == len(sizes):
            last = max(part.born for part in parts)
            moved |= dict.fromkeys(parts, after(last, 2))
            yield JobBlock(num_bytes=sum(sizes), born=after(last, 1), died=NEVER, operator=None, category="parameter")
    for block in job.blocks:
        yield replace(block, died=moved[block]) if block in moved else block


def _taken(there: list[JobBlock], sizes: tuple[int, ...], moved: dict[JobBlock, Moment]) -> Iterator[JobBlock]:
    wanted = Counter(sizes)
    for block in there:
        if wanted[block.num_bytes] and block not in moved:
            wanted[block.num_bytes] -= 1
            yield block
