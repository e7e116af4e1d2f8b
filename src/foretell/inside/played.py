"""One step of a training, played on the caching allocator in Python from what a forward pass shows.

Reserved memory depends on the order in which blocks come and go. The forward pass is known, operator by operator; the
backward pass follows from it (gradients in the opposite order, each as large as what it belongs to), and so does the
step of the optimizer. No torch is needed, so the same works on the virtual GPU and on the meta device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..allocator import CachingAllocator
from ..allocator.blocks import Block

_VIEWS = frozenset(("cat", "stack", "sum", "constant_pad_nd"))
_SUMS = _VIEWS | {"add", "add_", "sub", "sub_", "alias", "copy_", "clone"}
"""Their gradients are views of the result's, of the others where they are as large."""
_PRODUCTS_OF_TWO = frozenset(("mul", "mul_", "div", "div_"))
"""The gradient of an operand that is broadcast is as large as the result before it is summed."""
_BY_CUBLAS = frozenset(("addmm", "mm", "bmm", "baddbmm", "addbmm", "linear", "addmv", "mv"))
_FILTERS = 1
"""Among what a convolution reads; the bias comes after them."""
_SCALAR = 512


@dataclass(slots=True)
class Operator:
    """An operator of the forward pass that allocates, or writes in place."""

    name: str
    reads: list[tuple[int, int, int, bool, bool]]
    """Storage, offset and bytes (in blocks of the allocator) of each tensor, whether it needs a gradient, and whether
    it was cut out of a larger tensor: its gradient is put into zeros then, as large as that."""
    makes: list[tuple[int, int]]
    """New storages and their bytes."""
    changes: int | None = None
    """The storage it writes in place."""
    saves: list[int] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)
    """Storages that nobody holds when the next operator begins."""
    convolution: int | None = None
    sums: tuple[int, ...] = ()
    """What its backward pass holds for a while beside the gradients, in bytes."""


@dataclass(slots=True)
class Tape:
    """A forward pass; storages are numbered as they are first seen."""

    operators: list[Operator] = field(default_factory=list)
    constants: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Parameters and buffers, in the order of the model: bytes, and whether they are trained."""
    inputs: list[tuple[int, int]] = field(default_factory=list)
    results: set[int] = field(default_factory=set)
    """Which the script still holds when the next step begins."""
    loss: int | None = None
    """Where the backward pass begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of the training."""

    num_states: int
    """Of the optimizer for each parameter, of its size."""
    num_temporaries: int
    """As large as all parameters, if a step works on lists; else as large as each parameter in turn."""
    works_on_lists: bool
    zero_grad: str
    keeps_gradients: bool
    earlier_share: float
    """What passes that were not followed by a backward pass took, as a share of this one."""
    product_bytes: int
    """cuBLAS's workspace."""
    is_product_kept: bool
    """Each thread keeps its workspace; else each product has one for itself."""


Workspaces = Sequence[tuple[int, int, int]]
"""Of each convolution: forward, data gradient, weight gradient."""


def reserved_bytes(tape: Tape, settings: Settings, workspaces: Workspaces = (), *, ratio: float = 1.0) -> int:
    """What the allocator has reserved after two steps. `ratio`: with a batch so many times as large."""
    return _Player(tape, settings, workspaces, ratio).played()


class _Shared:
    """A gradient that several may wait for."""

    __slots__ = ("block", "count")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.count = 1


class _Player:
    def __init__(self, tape: Tape, settings: Settings, workspaces: Workspaces, ratio: float) -> None:
        self._tape = tape
        self._settings = settings
        self._workspaces = workspaces
        self._ratio = ratio
        self._allocator = CachingAllocator()
        self._malloc, self._free = self._allocator.malloc, self._allocator.free
        self._live: dict[int, Block] = {}
        """Activations, by storage."""
        self._gradients: dict[int, list[tuple[_Shared, int, int]]] = {}
        """Of activations: the block, and which part of the storage it belongs to."""
        self._cut: list[tuple[int, _Shared]] = []
        """Gradients of what was cut out of a tensor, by its storage."""
        self._of_parameters: dict[int, Block] = {}
        self._reached: set[int] = set()
        """Parameters that have a gradient of this backward pass."""
        self._sizes = {number: size for each in tape.operators for number, size in each.makes}
        self._has_product = [False, False]
        self._saved_by = self._last_savers()

    def played(self) -> int:
        for size, _ in self._tape.constants.values():
            self._malloc(size)
        settings = self._settings
        if settings.earlier_share:
            self._earlier(settings.earlier_share)
        inputs = self._inputs()
        results: dict[int, Block] = {}
        for step in range(2):
            if settings.zero_grad != "before_backward":
                self._drop_gradients()
            if step:
                self._drop(inputs)
                inputs = self._inputs()
            self._forward()
            self._drop(results.values())
            results = {number: self._live.pop(number) for number in self._tape.results if number in self._live}
            if step and settings.zero_grad == "before_backward":
                self._drop_gradients()
            self._backward()
            self._optimizer(is_first=not step)
        return self._allocator.peak_reserved_bytes

    # --- parts of a step ----------------------------------------------------------------------------------------------

    def _inputs(self) -> list[Block]:
        return [self._malloc(self._scaled(size)) for _, size in self._tape.inputs]

    def _earlier(self, share: float) -> None:
        ratio, self._ratio = self._ratio, self._ratio * share
        inputs = self._inputs()
        self._forward()
        self._drop(self._live.values())
        self._live.clear()
        self._ratio = ratio
        if share != 1:  # a summary, with an input of its own; that of a rehearsal stays
            self._drop(inputs)

    def _forward(self) -> None:
        live, malloc, free, scaled = self._live, self._malloc, self._free, self._scaled
        for each in self._tape.operators:
            for number, size in each.makes:
                live[number] = malloc(scaled(size))
            if each.convolution is not None and self._workspaces:
                self._use(self._scaled(self._workspaces[each.convolution][0]))
            elif each.name in _BY_CUBLAS:
                self._product(0)
            for number in each.frees:
                free(live.pop(number))

    def _backward(self) -> None:
        tape = self._tape
        if tape.loss is None:
            return
        self._gradients[tape.loss] = [(_Shared(self._malloc(_SCALAR)), 0, self._sizes.get(tape.loss, _SCALAR))]
        for i in range(len(tape.operators) - 1, -1, -1):
            each = tape.operators[i]
            parts = self._parts_of(each)
            if parts:
                self._gradients_of(each, parts)
                for part, _, _ in parts:
                    self._release(part)
            for number in self._saved_by[i]:
                block = self._live.pop(number, None)
                if block is not None:
                    self._free(block)
            for number, cut in self._cut:
                size = self._sizes.get(number, _SCALAR)
                whole = _Shared(self._malloc(self._scaled(size)))
                self._release(cut)
                self._add(number, (whole, 0, size))
            self._cut.clear()
        for parts in self._gradients.values():
            for part, _, _ in parts:
                self._release(part)
        self._gradients.clear()
        self._reached.clear()
        self._drop(self._live.values())
        self._live.clear()

    def _parts_of(self, operator: Operator) -> list[tuple[_Shared, int, int]]:
        """The gradients of what the operator made, those of parts of a tensor put together."""
        found = []
        makes = operator.makes if operator.changes is None else [(operator.changes, 0)]
        for number, _ in makes:
            parts = self._gradients.pop(number, None)
            if parts is None:
                continue
            size = self._sizes.get(number, _SCALAR)
            if len(parts) > 1 or parts[0][2] < size:
                whole = _Shared(self._malloc(self._scaled(size)))
                for part, _, _ in parts:
                    self._release(part)
                parts = [(whole, 0, size)]
            found += parts
        return found

    def _gradients_of(self, operator: Operator, parts: list[tuple[_Shared, int, int]]) -> None:
        whole, _, whole_size = parts[0]
        workspaces: tuple[int, ...] = ()
        if operator.convolution is not None and self._workspaces:
            workspaces = self._workspaces[operator.convolution][1:]
        is_product = operator.name in _BY_CUBLAS
        for place, (number, offset, size, needs, is_cut) in enumerate(operator.reads):
            if not needs:
                continue
            constant = self._tape.constants.get(number)
            if constant is not None:
                if constant[1]:
                    self._gradient_of_parameter(number, constant[0])
                    if workspaces and place == _FILTERS:
                        self._use(self._scaled(workspaces[1]))
                    elif is_product:
                        self._product(1)
                continue
            if operator.name in _SUMS and (size == whole_size or operator.name in _VIEWS):
                whole.count += 1
                gradient = whole
            else:
                if operator.name in _PRODUCTS_OF_TWO and size < whole_size:
                    self._use(self._scaled(whole_size))
                gradient = _Shared(self._malloc(self._scaled(size)))
            if is_cut:
                self._cut.append((number, gradient))
            else:
                self._add(number, (gradient, offset, size))
            if workspaces:
                self._use(self._scaled(workspaces[0]))
            elif is_product:
                self._product(1)

        self._drop([self._malloc(self._scaled(size)) for size in operator.sums if size])

    def _gradient_of_parameter(self, number: int, size: int) -> None:
        """A second one, of tied weights or of a step whose gradients were kept, is added to the first."""
        new = self._malloc(size)
        old = self._of_parameters.get(number)
        if old is not None and number in self._reached:
            total = self._malloc(size)
            self._free(old)
            self._free(new)
            new = total
        elif old is not None:
            self._free(new)  # in place
            new = old
        self._of_parameters[number] = new
        self._reached.add(number)

    def _add(self, number: int, part: tuple[_Shared, int, int]) -> None:
        """Another gradient of the same tensor is added to it, in place if nobody else waits for it."""
        parts = self._gradients.setdefault(number, [])
        shared, offset, size = part
        for i, (other, other_offset, other_size) in enumerate(parts):
            if (other_offset, other_size) != (offset, size):
                continue
            if other.count == 1:
                self._release(shared)
            else:
                parts[i] = (_Shared(self._malloc(self._scaled(size))), offset, size)
                self._release(other)
                self._release(shared)
            return
        parts.append(part)

    def _optimizer(self, *, is_first: bool) -> None:
        sizes = [size for number, (size, is_trained) in self._tape.constants.items() if number in self._of_parameters]
        malloc, settings = self._malloc, self._settings
        if is_first:
            for size in sizes:
                for _ in range(settings.num_states):
                    malloc(size)
        if settings.works_on_lists:
            self._drop([malloc(size) for size in sizes * settings.num_temporaries])
            return
        last: list[Block] = []  # a variable of the loop, which the next parameter gives another value
        for size in sizes:
            made = [malloc(size) for _ in range(settings.num_temporaries)]
            self._drop(last + made[:-1])
            last = made[-1:]
        self._drop(last)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _scaled(self, size: int) -> int:
        return size if self._ratio == 1 else int(size * self._ratio)

    def _use(self, size: int) -> None:
        if size:
            self._free(self._malloc(size))

    def _product(self, thread: int) -> None:
        if not self._settings.is_product_kept:
            self._use(self._settings.product_bytes)
        elif not self._has_product[thread]:
            self._has_product[thread] = True
            self._malloc(self._settings.product_bytes)

    def _release(self, shared: _Shared) -> None:
        shared.count -= 1
        if not shared.count:
            self._free(shared.block)

    def _drop(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._free(block)

    def _drop_gradients(self) -> None:
        if not self._settings.keeps_gradients:
            self._drop(self._of_parameters.values())
            self._of_parameters.clear()

    def _last_savers(self) -> list[list[int]]:
        """For each operator, what is free after its backward pass, because those after it have saved nothing of it."""
        found: list[list[int]] = [[] for _ in self._tape.operators]
        first: dict[int, int] = {}
        for i, each in enumerate(self._tape.operators):
            for number in each.saves:
                if number not in first and number not in self._tape.results:
                    first[number] = i
                    found[i].append(number)
        return found
