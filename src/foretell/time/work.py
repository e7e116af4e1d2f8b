"""The work of the recorded step, in the order in which the host issued it: what any card would have to do."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Literal

from foretell.protocol.native_log import CUDA_DATA_TYPES, CUDNN_DATA_TYPES, DIRECTIONS, EDGES, EVENT_USES, ROUTES
from foretell.protocol.operators import LOADER
from foretell.records import Phase
from foretell.time.computing import TRANSPARENT, called_by, computing_operators
from foretell.time.linking import Callers, is_within, within
from foretell.time.rules import COMPILED_NAMES, ELEMENT_BYTES, Call, Tensor, load_of, parse
from foretell.trace import ACTIONS, RecordedStep, Trace

Unit = Literal["tensor", "tf32", "fp32", "fp64"]
"""What computes: tensor cores in half precision or TF32, or the plain lanes."""
Kind = Literal["kernel", "copy", "wait_host", "record_event", "wait_event"]

_TYPE_NAMES = {number: name for name, number in CUDA_DATA_TYPES.items()}
_CUDNN_NAMES = {number: name for name, number in CUDNN_DATA_TYPES.items()}
_HALF = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")
_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "_scaled_mm", "dot", "linear", "addmv", "mv", "_cudnn_rnn",
     "_cudnn_rnn_backward", "lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn_flatten_weight"}
)  # fmt: skip
_FAST_TF32 = (74, 75, 76, 77)
"""cublasComputeType_t with FAST in its name: tensor cores for fp32 inputs."""
_GATES = (1, 1, 4, 3)
"""Matrices of a recurrent cell, by native_log.CELLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product, or a convolution as one: batch times m x k and k x n."""

    m: int
    n: int
    k: int
    batch: int


@dataclass(slots=True, kw_only=True)
class Item:
    kind: Kind = "kernel"
    kernel_class: str = "other"
    name: str = ""
    """The operator, or the function."""
    issued_us: int
    """When the host issued it, with foretell's hooks."""
    stream: int = 0
    bytes: float = 0.0
    flops: float = 0.0
    unit: Unit = "fp32"
    product: Product | None = None
    launches: int = 1
    blocks: float = 0.0
    """Of all its launches; 0: not known, follows from the product."""
    threads: int = 256
    """Of a block."""
    shared_bytes: int = 0
    registers: int | None = None
    """Of a thread; None: its machine code is not known."""
    rounds: int = 0
    """As of a load (rules.py)."""
    is_known: bool = True
    is_blocking: bool = False
    to_host: bool = False
    is_replayed: bool = False
    """Part of a CUDA graph, beside its first piece: the host does not issue it."""
    event: int = 0
    phase: Phase = "other"
    module: str | None = None
    num_operators: int = 0
    """Calls of operators since the item before, for the time of the host."""
    host_us: float = 0.0
    """The script's own work since the item before: operators on the CPU, loading, long gaps."""

    @property
    def host_launches(self) -> int:
        """Launches that the host issues one by one."""
        return 0 if self.is_replayed else self.launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    items: tuple[Item, ...]
    kind: Literal["training", "inference"]
    loader_us: float
    """Time the script waited for its DataLoader."""
    has_workers: bool
    wall_us: float
    num_samples: int | None
    num_graphs: int
    """Launches of CUDA graphs whose work is not known: they were captured before foretell could record it."""
    worker_us: float | None = None
    """Until the DataLoader's workers have the batches of a step; None: not known, or there are none."""
    tail_operators: int = 0
    tail_host_us: float = 0.0
    """As of an item, after the last one."""


CELL_ACCESSES = 12
"""Numbers that a step of a recurrent net reads and writes for each sample and hidden unit: what its product adds to and
the gates read, the old and the new state, and what is kept for the gradient."""
HOOKED_US = (3200.0, 7.2, 42.0)
"""CPU time that foretell's hooks and PyTorch's profiler take at most for a step, an operator and a launch: 1.15 times
the fit to the steps of 40 models, of which nine in ten took less."""
COMPUTED_US = (3200.0, 7.2, 300.0)
"""The same with the CPU engine, which computes a kernel's shapes in Python: 165 to 300 µs for each of GPT-2 and
ResNet-50."""
LOOP_US = 740.0
"""CPU time of the fixed loop on the machine of the experiments, when nothing else ran. Where the loop is faster, its
script was not: the same steps were recorded twice on a busy machine, once when the loop took 760 µs and once when it
took 570, and loading a batch took as long in both. So only a slower machine is corrected for."""
LONG_GAP_US = 1500
"""In CPU time; longer than foretell's hooks take between two operators: the script itself works there."""
LONG_OPERATOR_US = 150
"""An operator on the CPU that takes longer computes; a shorter one is counted."""
MOST_BYTES_A_THREAD = 256
"""Of an elementwise kernel: 16 elements of four tensors in fp32."""
AS_NEIGHBOURS = -2
"""The stream of a call of a library, which is not logged: that of the kernel before."""


def work_of(trace: Trace) -> Work | None:
    """None if the operators of no step were recorded."""
    step = trace.recorded_step
    if step is None:
        return None
    return _Reader(trace).work()


class _Reader:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        step = trace.recorded_step
        assert step is not None
        self._step = step
        self._captures = captures_of(trace)
        self._span = step.begin_us, step.end_us
        """The rows that are read: those of the step, or of a capture."""
        self._cpu_speed = min(1.0, LOOP_US / step.loop_us) if step.loop_us else 1.0
        self._callers = Callers(trace.operators)
        self._device = trace.busiest_device
        self._modules = _Modules(trace)
        self._computing = computing_operators(trace) if trace.engine == "cpu" else frozenset()
        """Rows of operators that have kernels, where no launches are recorded."""
        self._code = {code.name: code for code in trace.kernel_code}
        self._call = cache(lambda number: parse(trace.signatures[number]))

    def work(self) -> Work:
        launches, num_unknown = self._launched_graphs()
        own = self._read((self._step.begin_us, self._step.end_us))
        items = sorted([*own, *launches], key=lambda item: item.issued_us)
        tail = _add_host(items, self._trace, self._step, self._cpu_speed, self._computing)
        for item in items:
            item.host_us *= self._cpu_speed
        wall_us = self._step.end_us - self._step.begin_us
        loader_us = self._cpu_speed * sum(_loading(self._trace, self._step).values())
        batches = [b for b in self._trace.batches if b.step == self._step.step]
        return Work(
            items=tuple(items),
            kind=self._step.kind,
            loader_us=loader_us,
            has_workers=any(each.num_workers for each in self._trace.loaders or ()),
            worker_us=self._worker_us(len(batches)),
            wall_us=max(0, wall_us - self._step.delay_us),
            num_samples=sum(b.num_samples for b in batches) or None if self._step.kind == "training" else None,
            num_graphs=num_unknown,
            tail_operators=tail[0],
            tail_host_us=tail[1] * self._cpu_speed,
        )

    def _worker_us(self, num_batches: int) -> float | None:
        measured = [b.worker_us for b in self._trace.batches if b.worker_us is not None]
        workers = max((each.num_workers for each in self._trace.loaders or ()), default=0)
        return self._cpu_speed * measured[-1] * max(1, num_batches) / workers if measured and workers else None

    def _launched_graphs(self) -> tuple[list[Item], int]:
        """The work of the graphs that the step launches, and how many of them are not known."""
        table, found, num_unknown = self._trace.graph_launches, [], 0
        captured = cache(self._captured)
        for at in within(table.time_us, self._step.begin_us, self._step.end_us):
            nodes = captured(table.graph[at]) if table.graph[at] in self._captures else ()
            num_unknown += not nodes
            for number, node in enumerate(nodes):
                found.append(
                    replace(node, issued_us=table.time_us[at], stream=table.stream[at], is_replayed=number > 0)
                )
        if not table.time_us:  # a file from before graphs were recorded
            library, names = self._trace.library, self._trace.names
            rows = within(library.time_us, self._step.begin_us, self._step.end_us)
            num_unknown = sum("GraphLaunch" in names[library.name[row]] for row in rows)
        return found, num_unknown

    def _captured(self, graph: int) -> tuple[Item, ...]:
        """The nodes of a graph, as on one stream."""
        return tuple(item for item in self._read(self._captures[graph]) if item.launches)

    def _phase_at(self, time_us: int) -> Phase:
        phases = self._step.phases
        if self._step.kind == "inference" or not phases:
            return "evaluation" if self._step.kind == "inference" else "other"
        return phases[max(0, bisect_right(phases, time_us, key=lambda each: each[0]) - 1)][1]

    def _read(self, span: tuple[int, int]) -> list[Item]:
        self._span = span
        found = sorted(self._items(), key=lambda item: item.issued_us)
        streams = [item.stream for item in found if item.kind == "kernel" and item.stream != AS_NEIGHBOURS]
        stream = streams[0] if streams else 0
        for item in found:
            item.phase = self._phase_at(item.issued_us)
            # An optimizer works for all modules at once, and may allocate nothing.
            item.module = None if item.phase == "optimizer" else self._modules.at(item.issued_us)
            if item.stream == AS_NEIGHBOURS:
                item.stream = stream
            elif item.kind == "kernel":
                stream = item.stream
        return found

    def _rows(self, times: array[int]) -> list[int]:
        """Without what was captured meanwhile."""
        inner = [each for each in self._captures.values() if self._span[0] < each[0] and each[1] < self._span[1]]
        rows = within(times, *self._span)
        return [row for row in rows if not is_within(times[row], inner)] if inner else rows

    def _caller(self, time_us: int) -> int:
        row = self._callers.at(time_us)
        while row >= 0 and _is_transparent(self._operator(row).name):
            row = self._trace.operators.parent[row]
        return row

    def _operator(self, row: int) -> Call:
        call: Call = self._call(self._trace.operators.signature[row])
        return call

    def _items(self) -> Iterator[Item]:
        yield from self._products()
        yield from self._convolutions()
        yield from self._recurrent()
        if self._trace.engine == "cpu":
            yield from self._operators()
            return
        yield from self._kernels()
        yield from self._moves()

    # --- calls of libraries -------------------------------------------------------------------------------------------

    def _products(self) -> Iterator[Item]:
        table = self._trace.products
        for at in self._rows(table.time_us):
            dtype = _TYPE_NAMES.get(table.input_type[at], "float32")
            m, n, k, batch = table.m[at], table.n[at], table.k[at], max(1, table.batch_count[at])
            width = ELEMENT_BYTES.get(dtype, 4)
            out = ELEMENT_BYTES.get(_TYPE_NAMES.get(table.output_type[at], dtype), width)
            yield Item(
                kernel_class="gemm" if batch == 1 else "bmm",
                name="matrix product",
                stream=AS_NEIGHBOURS,
                issued_us=table.time_us[at],
                bytes=float(batch * (width * (m * k + k * n) + out * m * n)),
                flops=2.0 * m * n * k * batch,
                unit=_unit(dtype, is_tf32=table.compute_type[at] in _FAST_TF32),
                product=Product(m=m, n=n, k=k, batch=batch),
            )

    def _convolutions(self) -> Iterator[Item]:
        table = self._trace.convolutions
        has_tf32 = not any(
            call.name == "cudnn_convolution" and call.flags[-1:] == [False]
            for call in (self._call(number) for number in set(self._trace.operators.signature))
        )
        for at in self._rows(table.time_us):
            dtype = _CUDNN_NAMES.get(table.data_type[at], "float32")
            direction = DIRECTIONS[table.direction[at]]
            row = self._caller(table.time_us[at])
            shape = _convolution_shape(self._operator(row)) if row >= 0 else None
            product, groups, layout = _as_product(shape, direction, dtype, table.multiply_adds[at])
            kind = "conv"
            if groups > 1:
                kind = "depthwise" if shape is not None and shape[1].sizes[1] == 1 else "grouped_conv"
            kind += "" if direction == "forward" else "_backward"
            kind += "_weights" if kind == "conv_backward" and direction == "weights" else ""
            yield Item(
                kernel_class=kind + ("_nhwc" if layout == "channels_last" else ""),
                name="convolution",
                stream=AS_NEIGHBOURS,
                issued_us=table.time_us[at],
                bytes=float(table.x_bytes[at] + table.y_bytes[at] + table.w_bytes[at]),
                flops=2.0 * table.multiply_adds[at],
                unit=_unit(dtype, is_tf32=has_tf32),
                product=product,
            )

    def _recurrent(self) -> Iterator[Item]:
        """As cuDNN computes it: the products of the inputs of all steps at once, those of the hidden states step by
        step, and the gradients of the weights over all steps at once. The layers of a net work side by side, each a
        step behind the one before; so do the directions."""
        table = self._trace.recurrent
        for at in self._rows(table.time_us):
            dtype = _CUDNN_NAMES.get(table.data_type[at], "float32")
            steps, batch, hidden = table.num_steps[at], table.batch_size[at], table.hidden_size[at]
            layers, directions = max(1, table.num_layers[at]), max(1, table.num_directions[at])
            gates, samples = _GATES[min(table.cell[at], 3)] * hidden, steps * batch
            item = partial(
                Item, name="recurrent net", stream=AS_NEIGHBOURS, issued_us=table.time_us[at],
                unit=_unit(dtype, is_tf32=False),
            )  # fmt: skip
            width, element = table.input_size[at], ELEMENT_BYTES.get(dtype, 4)
            is_of_weights = DIRECTIONS[table.direction[at]] == "weights"
            for _ in range(layers):
                size = width + hidden if is_of_weights else width
                m, n, k = (gates * directions, size, samples) if is_of_weights else (samples, gates * directions, size)
                yield item(
                    kernel_class="gemm", bytes=float(element * (m * k + k * n + m * n)), flops=2.0 * m * n * k,
                    product=Product(m=m, n=n, k=k, batch=1),
                )  # fmt: skip
                width = hidden * directions
            if not is_of_weights:
                yield item(
                    kernel_class="recurrent", launches=steps + layers - 1,
                    bytes=float(element * CELL_ACCESSES * hidden * samples * directions * layers),
                    flops=2.0 * samples * gates * hidden * directions * layers,
                    product=Product(m=batch, n=gates, k=hidden, batch=min(layers, steps) * directions),
                )  # fmt: skip

    # --- operators, where no launches are recorded --------------------------------------------------------------------

    def _operators(self) -> Iterator[Item]:
        """One kernel for each that no library call tells more about."""
        trace = self._trace
        calls = trace.products.time_us, trace.convolutions.time_us, trace.recurrent.time_us
        told = {self._caller(times[at]) for times in calls for at in self._rows(times)}
        for row in self._rows(trace.operators.begin_us):
            if row in self._computing and row not in told:
                yield self._item_without_launch(row)

    def _item_without_launch(self, row: int) -> Item:
        call = self._operator(row)
        issued_us = self._trace.operators.begin_us[row]
        is_read = call.name == "item"
        if is_read or (call.name == "copy_" and len(call.on_gpu) < len(call.tensors)):
            route = "to host" if is_read or not call.tensors[0].is_on_gpu else "to device"
            return Item(
                kind="copy", kernel_class="copy", name=f"copy {route}", issued_us=issued_us,
                bytes=float(call.on_gpu[0].bytes), to_host=route == "to host",
                is_blocking=is_read or not any(call.flags),  # non_blocking, which has an effect if memory is pinned
            )  # fmt: skip
        load = load_of(call, ())
        item = Item(
            kernel_class=load.kernel_class, name=call.name, issued_us=issued_us, bytes=load.bytes, flops=load.flops,
            is_known=load.is_known, rounds=load.rounds,
        )  # fmt: skip
        if load.flops and call.largest is not None:
            item.unit = _unit(call.largest.dtype, is_tf32=False)
        return item

    # --- kernels ------------------------------------------------------------------------------------------------------

    def _kernels(self) -> Iterator[Item]:
        """One item for the kernels of an operator: its rule says what they do together."""
        table, library = self._trace.kernels, self._trace.library
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for at in self._rows(table.time_us):
            row = self._caller(table.time_us[at])
            # Kernels outside of operators stand for themselves.
            groups[row, 0 if row >= 0 else at].append(at)
        for (row, _), launches in groups.items():
            yield self._item_of(row, launches)
        for at in self._rows(library.time_us):
            row = self._caller(library.time_us[at])
            name = self._trace.names[library.name[at]]
            if (row, 0) in groups or "Create" in name or "GraphLaunch" in name:
                continue
            call = self._operator(row) if row >= 0 else Call(name, ())
            if call.name in _PRODUCTS:
                continue
            load = load_of(call, ())
            yield Item(
                kernel_class=load.kernel_class, name=call.name, issued_us=library.time_us[at], bytes=load.bytes,
                flops=load.flops, is_known=load.is_known, stream=AS_NEIGHBOURS,
            )  # fmt: skip

    def _item_of(self, row: int, launches: Sequence[int]) -> Item:
        table = self._trace.kernels
        names = [self._trace.names[table.name[at]] for at in launches]
        blocks = [table.grid_x[at] * table.grid_y[at] * table.grid_z[at] for at in launches]
        largest = max(range(len(launches)), key=blocks.__getitem__)
        code = self._code.get(table.name[launches[largest]])
        item = Item(
            name=names[0], issued_us=table.time_us[launches[0]], stream=table.place[launches[0]] >> 8,
            launches=len(launches), blocks=float(blocks[largest]), threads=_threads(table.block[launches[largest]]),
            shared_bytes=table.shared_bytes[launches[largest]] + (code.shared_bytes if code else 0),
            registers=code.registers if code else None, is_known=False,
        )  # fmt: skip
        if row < 0:
            return item
        call = self._operator(row)
        item.name = call.name
        if call.name in _PRODUCTS:  # beside the call of the library: it prepares or adds a bias
            item.kernel_class, item.is_known = "elementwise", True
            return item
        load = load_of(call, names)
        item.kernel_class, item.bytes, item.flops = load.kernel_class, load.bytes, load.flops
        if all("elementwise_kernel" in name for name in names):
            # Its threads do not loop. A kernel whose time is at the edge of an operator may belong to the next one.
            threads = sum(count * _threads(table.block[at]) for count, at in zip(blocks, launches, strict=True))
            item.bytes = min(item.bytes, MOST_BYTES_A_THREAD * threads)
        item.is_known, item.rounds = load.is_known, load.rounds
        if call.name in COMPILED_NAMES:
            item.name = names[0]
        largest_tensor = call.largest
        if load.flops and load.kernel_class in ("attention", "gemm") and largest_tensor is not None:
            item.unit = _unit(largest_tensor.dtype, is_tf32=False)
        return item

    # --- copies, memsets, synchronisations ----------------------------------------------------------------------------

    def _moves(self) -> Iterator[Item]:
        trace = self._trace
        for at in self._rows(trace.memsets.time_us):
            yield Item(
                kernel_class="elementwise", name="memset", issued_us=trace.memsets.time_us[at],
                stream=trace.memsets.stream[at], bytes=float(trace.memsets.bytes[at]),
            )  # fmt: skip
        copies = trace.copies
        for at in self._rows(copies.time_us):
            route = ROUTES[copies.route[at]]
            if route == "within_host":
                continue
            is_inside = route == "within_device"
            yield Item(
                kind="kernel" if is_inside else "copy", kernel_class="elementwise" if is_inside else "copy",
                name=f"copy {route.replace('_', ' ')}", issued_us=copies.time_us[at], stream=copies.stream[at],
                bytes=float(copies.bytes[at]) * (2 if is_inside else 1), to_host=route == "to_host",
                # A copy from memory that is not pinned returns when the driver has read it.
                is_blocking=bool(copies.is_blocking[at]) or (not is_inside and not copies.is_pinned[at]),
            )  # fmt: skip
        waits = trace.synchronizations
        for at in self._rows(waits.time_us):
            if waits.device[at] == self._device:
                yield Item(
                    kind="wait_host", name="synchronization", issued_us=waits.time_us[at], launches=0,
                    stream=waits.stream[at] if waits.waits_for[at] == 1 else -1,
                )  # fmt: skip
        uses = trace.event_uses
        for at in self._rows(uses.time_us):
            is_record = EVENT_USES[uses.use[at]] == "record"
            yield Item(
                kind="record_event" if is_record else "wait_event", name="event", issued_us=uses.time_us[at],
                stream=uses.stream[at], event=uses.event[at], launches=0,
            )  # fmt: skip


class _Modules:
    """Which module a moment belongs to: the one for which memory was allocated last."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        alloc = ACTIONS.index("alloc")
        memory = trace.memory
        rows = [row for row, action in enumerate(memory.action) if action == alloc and memory.origin[row] >= 0]
        self._times = [memory.time_us[row] for row in rows]
        self._origins = [memory.origin[row] for row in rows]
        self._name = cache(lambda origin: trace.origin(origin).module)

    def at(self, time_us: int) -> str | None:
        at = bisect_right(self._times, time_us) - 1
        return self._name(self._origins[at]) if at >= 0 else None


def _add_host(
    items: Sequence[Item], trace: Trace, step: RecordedStep, cpu_speed: float, computing: Set[int] = frozenset()
) -> tuple[int, float]:
    """What the host does before each item: operators it calls, and the script's own time. Returns that of the end. What
    the CPU engine calls to compute an operator is not the script's."""
    operators, begin_us, end_us, cpu_us = trace.operators, step.begin_us, step.end_us, step.cpu_us
    inner = list(captures_of(trace).values())
    times = [item.issued_us for item in items]
    loading = _loading(trace, step)
    counts, own, loader = [0] * (len(items) + 1), [0.0] * (len(items) + 1), [0.0] * (len(items) + 1)
    is_on_gpu = [bool(parse(text).on_gpu) for text in trace.signatures]
    covered = begin_us
    loaded_until = begin_us
    running = _undelayed(step)  # the clock also runs while other processes have the CPU
    inner_rows = called_by(operators, computing) if computing else frozenset()
    rows = [row for row in within(operators.begin_us, begin_us, end_us) if row not in inner_rows]
    for row in sorted(rows, key=operators.begin_us.__getitem__):
        begin, end, number = operators.begin_us[row], operators.end_us[row], operators.signature[row]
        if inner and is_within(begin, inner):
            continue
        at = bisect_right(times, begin)
        if operators.parent[row] < 0:
            own[at] += max(0.0, running * (begin - covered) - LONG_GAP_US)
            covered = max(covered, end)
            if row in loading:
                loader[at] += loading[row]
                loaded_until = max(loaded_until, end)
                continue
            has_no_gpu = not is_on_gpu[number] and bisect_right(times, end) == at
            if has_no_gpu and running * (end - begin) > LONG_OPERATOR_US:
                own[at] += running * (end - begin)
                continue
        if begin >= loaded_until:  # what a loader calls is in its time
            counts[at] += 1
    if items:
        own[-1] += max(0.0, running * (end_us - covered) - LONG_GAP_US)
    # Waiting for a loader is no work of this process.
    per_step, per_operator, per_launch = COMPUTED_US if computing else HOOKED_US
    hooked = per_step + per_operator * sum(counts) + per_launch * sum(item.host_launches for item in items)
    worked = max(0.0, cpu_us - step.loading_us - hooked / cpu_speed)
    share = min(1.0, worked / max(1.0, sum(own)))
    for item, count, own_us, loader_us in zip(items, counts, own, loader, strict=False):
        item.num_operators, item.host_us = count, share * own_us + loader_us
    return counts[-1], share * own[-1] + loader[-1]


def _is_transparent(name: str) -> bool:
    """Inductor's own record of a launch lies inside of foretell's, which has more."""
    return name in TRANSPARENT or (name.startswith("triton_") and name != "triton_kernel")


def captures_of(trace: Trace) -> dict[int, tuple[int, int]]:
    """When each graph was captured, by its number."""
    table, begun, found = trace.captures, {}, {}
    for time_us, edge, graph in zip(table.time_us, table.edge, table.graph, strict=True):
        if EDGES[edge] == "begin":
            begun[graph] = time_us
        elif graph in begun:
            found[graph] = begun[graph], time_us
    return found


def _loading(trace: Trace, step: RecordedStep) -> dict[int, float]:
    """How long each delivery of a batch took in the step, by the row of its operator: as it was measured of other
    batches without hooks, or here, less the time in which another process had the CPU."""
    operators = trace.operators
    rows = [row for row, number in enumerate(operators.signature) if LOADER in trace.signatures[number]]
    shapes = {batch.shape for batch in trace.batches if batch.step == step.step}
    measured = [batch.took_us for batch in trace.batches if batch.took_us is not None and batch.shape in shapes]
    if measured:
        return dict.fromkeys(rows, float(min(measured)))
    return {row: _undelayed(step) * (operators.end_us[row] - operators.begin_us[row]) for row in rows}


def _undelayed(step: RecordedStep) -> float:
    """The share of the step in which no other process had the CPU that it needed."""
    return max(0.05, 1.0 - step.delay_us / max(1, step.end_us - step.begin_us))


def _threads(block: int) -> int:
    """Of a block, from its three packed dimensions."""
    return prod(max(1, each) for each in (block & 0xFFFF, block >> 16 & 0xFFFF, block >> 32))


def _unit(dtype: str, *, is_tf32: bool) -> Unit:
    if dtype in _HALF:
        return "tensor"
    if dtype in ("float64", "complex128"):
        return "fp64"
    return "tf32" if is_tf32 else "fp32"


def _convolution_shape(call: Call) -> tuple[Tensor, Tensor, int] | None:
    """The input, the weights and the number of groups of a convolution or of its gradients."""
    tensors = [each for each in call.on_gpu if len(each.sizes) >= 3]
    at = 1 if call.name == "convolution_backward" else 0
    if len(tensors) < at + 2 or not call.integers:
        return None
    return tensors[at], tensors[at + 1], max(1, call.integers[0])


def _as_product(
    shape: tuple[Tensor, Tensor, int] | None, direction: str, dtype: str, multiply_adds: int
) -> tuple[Product | None, int, str]:
    """Implicit GEMM: positions by output channels by filter; and what is known of groups and layout."""
    if shape is None or not multiply_adds:
        return None, 1, "contiguous"
    x, w, groups = shape
    outputs, inputs = max(1, w.sizes[0] // groups), w.sizes[1] * prod(w.sizes[2:])
    positions = max(1, multiply_adds // max(1, outputs * inputs * groups))
    if direction == "forward":
        product = Product(m=positions, n=outputs, k=inputs, batch=groups)
    elif direction == "data":
        product = Product(m=positions, n=w.sizes[1], k=outputs * prod(w.sizes[2:]), batch=groups)
    else:
        product = Product(m=outputs, n=inputs, k=positions, batch=groups)
    return product, groups, "channels_last" if "channels_last" in (x.layout, w.layout) else "contiguous"
