"""Memory blocks of a profiled job: the lifetime, operator, phase and step of each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foretell.engines.imported.cpu_profile import CpuProfile, Operator
from foretell.engines.imported.moments import BEFORE, NEVER, START, Moment
from foretell.records import Category, Phase

_BACKWARD = "autograd::engine::evaluate_function: "
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::_addmm_activation"}
_SECTION = re.compile(r"^(Optimizer\.|ProfilerStep#|enumerate\(DataLoader)")
"""PyTorch's own annotations, which end a forward pass."""
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBlock:
    """A memory block from allocation to free."""

    num_bytes: int
    born: Moment
    died: Moment
    """NEVER if it outlives the recording."""
    operator: int | None
    """Number of the innermost operator that was running when it was allocated."""
    category: Category = "temporary"
    is_optional: bool = False
    """If memory is short, the kernel runs without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    begin: Moment
    end: Moment

    def holds(self, tick: Moment) -> bool:
        return self.begin < tick < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    name: str
    """Class name: `AdamW`."""
    begin: Moment
    end: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive operators of one phase."""

    phase: Phase
    begin: Moment
    end: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A recorded job. Passes change only the blocks; the operators stay as recorded."""

    operators: tuple[Operator, ...]
    phases: tuple[Phase, ...]
    """Phase of each operator."""
    stretches: tuple[Stretch, ...]
    """In order, without those of phase `other`."""
    nodes: dict[int, Operator]
    """Number of a forward operator -> its autograd node, as run in the backward pass."""
    optimizer_steps: tuple[OptimizerStep, ...]
    step_ends: tuple[Moment, ...]
    first_training_tick: Moment
    """Until then the model is built and the first batch is made."""
    blocks: tuple[JobBlock, ...] = ()

    def outer(self, number: int | None) -> Iterator[int]:
        """An operator and its callers, innermost first."""
        while number is not None:
            yield number
            number = self.operators[number].parent

    def top(self, number: int) -> int:
        """The outermost enclosing operator of PyTorch's own."""
        return [at for at in self.outer(number) if at == number or not self.operators[at].is_annotation][-1]

    def within(self, number: int | None, *names: str) -> int | None:
        """The operator itself, or the innermost enclosing one, that has one of these names."""
        return next((at for at in self.outer(number) if self.operators[at].name in names), None)

    def numbers(self, span: Span) -> range:
        """Numbers of the operators that begin in the span."""
        begin, end = (bisect_left(self.operators, tick, key=lambda o: o.begin) for tick in (span.begin, span.end))
        return range(begin, end)

    def parts(self, number: int) -> range:
        """Numbers of an operator and all operators it calls."""
        operator = self.operators[number]
        return self.numbers(Span(begin=operator.begin, end=operator.end))

    def backward_of(self, number: int) -> Span | None:
        """From the first to the last autograd node made by an operator's parts, each of which has a sequence number of
        its own."""
        nodes = [self.nodes[at] for at in self.parts(number) if at in self.nodes]
        if not nodes:
            return None
        return Span(begin=min(node.begin for node in nodes), end=max(node.end for node in nodes))

    def phase_of(self, block: JobBlock) -> Phase:
        return "other" if block.operator is None else self.phases[block.operator]

    def step_at(self, tick: Moment) -> int:
        return bisect_left(self.step_ends, tick)

    def next_compute(self, tick: Moment) -> Moment | None:
        """When the model runs next; None after its last run."""
        at = bisect_left(self.stretches, tick, key=lambda stretch: stretch.begin)
        later = (s.begin for s in self.stretches[at:] if s.phase in ("forward", "evaluation"))
        return next(later, None)

    def end_of(self, phase: Phase, tick: Moment) -> Moment:
        """End of the stretch of this phase that contains the tick."""
        at = bisect_left(self.stretches, tick, key=lambda stretch: stretch.end)
        return self.stretches[at].end if at < len(self.stretches) and self.stretches[at].phase == phase else tick


def analyse(profile: CpuProfile) -> RecordedJob:
    operators = profile.operators
    phases = _phases(operators)
    stretches = tuple(_stretches(operators, phases))
    optimizer_steps = tuple(_optimizer_steps(operators))
    job = RecordedJob(
        operators=operators,
        phases=phases,
        stretches=stretches,
        nodes=_nodes(operators, phases),
        optimizer_steps=optimizer_steps,
        step_ends=_step_ends(operators, optimizer_steps),
        first_training_tick=_first_training_tick(operators, phases, profile.num_ticks),
    )
    job = replace(job, blocks=tuple(sorted(_pairs(profile), key=lambda block: block.born)))
    return _categorised(job)


def _phases(operators: tuple[Operator, ...]) -> tuple[Phase, ...]:
    """Phase of each operator. Forward: operators that made an autograd node, and everything between them. The same
    without a backward pass is evaluation, recognised by its matrix products."""
    found: list[Phase] = []
    for operator in operators:
        if _OPTIMIZER_STEP.search(operator.name):
            found.append("optimizer")
        elif operator.name.startswith(_BACKWARD):
            found.append("backward")
        else:
            found.append("other" if operator.parent is None else found[operator.parent])
    tops = _tops(operators)
    computing: dict[int, Phase] = {tops[n]: "evaluation" for n, o in enumerate(operators) if o.name in PRODUCTS}
    computing |= {tops[n]: "forward" for n in _nodes(operators, found)}
    for run in _runs(operators, [phase == "other" for phase in found], tops):
        at_work = [at for at, number in enumerate(run) if tops[number] in computing]
        if at_work:
            # A frozen part at the beginning makes no nodes, only matrix products, and is forward all the same.
            is_forward = any(computing[tops[run[at]]] == "forward" for at in at_work)
            for number in run[at_work[0] : at_work[-1] + 1]:
                found[number] = "forward" if is_forward else "evaluation"
    return tuple(found)


def _runs(operators: tuple[Operator, ...], is_open: list[bool], tops: list[int]) -> Iterator[list[int]]:
    """Runs of consecutive operators, without a backward pass or an optimizer between them."""
    run: list[int] = []
    for number, operator in enumerate(operators):
        if not is_open[tops[number]] or _SECTION.search(operator.name):
            yield run
            run = []
        elif not operator.is_annotation:
            run.append(number)
    yield run


def _tops(operators: tuple[Operator, ...]) -> list[int]:
    """For each operator, the outermost enclosing one that is not an annotation or a Python function."""
    tops: list[int] = []
    for number, operator in enumerate(operators):
        parent = operator.parent
        tops.append(number if parent is None or operators[parent].is_annotation else tops[parent])
    return tops


def _stretches(operators: tuple[Operator, ...], phases: tuple[Phase, ...]) -> Iterator[Stretch]:
    current: Stretch | None = None
    for operator, phase in zip(operators, phases, strict=True):
        if current is not None and phase == current.phase:
            current = replace(current, end=max(current.end, operator.end))
        elif phase != "other" or not operator.is_annotation:
            if current is not None:
                yield current
            current = None
            if phase != "other":
                current = Stretch(phase=phase, begin=operator.begin, end=operator.end)
    if current is not None:
        yield current


def _optimizer_steps(operators: tuple[Operator, ...]) -> Iterator[OptimizerStep]:
    for operator in operators:
        match = _OPTIMIZER_STEP.search(operator.name)
        if match:
            yield OptimizerStep(name=match[1], begin=operator.begin, end=operator.end)


def _step_ends(operators: tuple[Operator, ...], optimizer_steps: tuple[OptimizerStep, ...]) -> tuple[Moment, ...]:
    """End of each step. If the script calls `profiler.step()`, that defines a step; it matters with two optimizers."""
    said = [operator for operator in operators if operator.name.startswith("ProfilerStep#")]
    trained = [step.end for step in optimizer_steps]
    ends = [
        trained[bisect_right(trained, operator.end) - 1]
        for operator in said
        if bisect_left(trained, operator.begin) < bisect_right(trained, operator.end)
    ]
    return tuple(sorted(set(ends))) or tuple(trained)


def _nodes(operators: tuple[Operator, ...], phases: Sequence[Phase]) -> dict[int, Operator]:
    """Autograd nodes by operator. An operator records the sequence number of the next node, so of several with the same
    number the last one made the node."""
    makers: dict[int, int] = {}
    nodes: dict[int, Operator] = {}
    for number, operator in enumerate(operators):
        if operator.sequence is None:
            continue
        if operator.name.startswith(_BACKWARD):
            if operator.sequence in makers:
                nodes.setdefault(makers[operator.sequence], operator)
        elif phases[number] != "backward" or operator.sequence not in makers:
            makers[operator.sequence] = number
    return nodes


def _first_training_tick(operators: tuple[Operator, ...], phases: tuple[Phase, ...], num_ticks: int) -> Moment:
    return next((o.begin for o, phase in zip(operators, phases, strict=True) if phase == "forward"), (num_ticks,))


def _pairs(profile: CpuProfile) -> Iterator[JobBlock]:
    held: dict[int, tuple[int, Moment, int | None]] = {}
    for event in profile.memory:
        if event.num_bytes > 0:
            held[event.address] = (event.num_bytes, event.tick, event.operator)
        elif event.num_bytes < 0:
            num_bytes, born, operator = held.pop(event.address, (-event.num_bytes, BEFORE, None))
            yield JobBlock(num_bytes=num_bytes, born=born, died=event.tick, operator=operator)
    for num_bytes, born, operator in held.values():
        yield JobBlock(num_bytes=num_bytes, born=born, died=NEVER, operator=operator)


def _categorised(job: RecordedJob) -> RecordedJob:
    named = tuple(replace(block, category=_category(job, block)) for block in job.blocks)
    return replace(job, blocks=named)


def _category(job: RecordedJob, block: JobBlock) -> Category:
    phase = job.phase_of(block)
    if phase == "optimizer":
        return "optimizer_state" if block.died > job.end_of("optimizer", block.born) else "temporary"
    if phase == "backward":
        return "gradient" if block.died > job.end_of("backward", block.born) else "temporary"
    if phase == "forward":
        return "activation" if block.died > job.end_of("forward", block.born) else "temporary"
    if phase == "evaluation":
        return "temporary"
    return "input" if block.born >= START else "gradient"
