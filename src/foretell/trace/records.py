"""The contents of a trace. Large tables are columns of plain numbers; everything else is small and frozen."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Literal

from foretell.allocator import AllocatorSettings
from foretell.masking import mask, mask_command
from foretell.protocol import marks
from foretell.protocol.history import ACTIONS
from foretell.protocol.native_log import WORKSPACE_SOURCES
from foretell.records import Connections, Engine, Gpu, Isolation, LibraryBytes, Need, OutOfMemory, Phase, TensorShape

PHASES: tuple[Phase, ...] = marks.PHASES

# Column types, by the letters of the array module; on disk they are little-endian.
_i64, _u64, _i32, _u32, _u16, _u8, _i8 = (partial(array, letter) for letter in "qQiIHBb")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvents:
    """PyTorch's memory history, in order."""

    time_us: array[int] = field(default_factory=_i64)
    action: array[int] = field(default_factory=_u8)
    """Index into ACTIONS."""
    address: array[int] = field(default_factory=_u64)
    """For an oom: the free bytes on the card."""
    size: array[int] = field(default_factory=_i64)
    """As requested: blocks are larger (foretell.allocator.follow)."""
    stream: array[int] = field(default_factory=_u64)
    device: array[int] = field(default_factory=_u16)
    stack: array[int] = field(default_factory=_i32)
    """Index into Trace.stacks; -1 for none."""
    origin: array[int] = field(default_factory=_i32)
    """For an allocation: row of Trace.origins; -1 for none."""

    def of_device(self, device: int) -> Iterator[tuple[int, str, int, int]]:
        """Rows of time_us, action, address, size."""
        rows = zip(self.time_us, self.action, self.address, self.size, strict=True)
        mask = (d == device for d in self.device)
        return ((time_us, ACTIONS[action], address, size) for time_us, action, address, size in compress(rows, mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEvents:
    """Memory at driver level: cudaMalloc and its relatives."""

    time_us: array[int] = field(default_factory=_i64)
    is_free: array[int] = field(default_factory=_u8)
    name: array[int] = field(default_factory=_u32)
    address: array[int] = field(default_factory=_u64)
    size: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_i64)
    in_use: array[int] = field(default_factory=_i64)
    """Bytes in use on the device after the event, without context and libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Addresses of tensors whose role in the training is known."""

    event: array[int] = field(default_factory=_i64)
    """Index of the memory event (over all devices) before which the label applies."""
    device: array[int] = field(default_factory=_u16)
    address: array[int] = field(default_factory=_u64)
    """May be inside a block."""
    category: array[int] = field(default_factory=_u8)
    """Index into records.CATEGORIES."""
    name: array[int] = field(default_factory=_i32)
    """Index into Trace.owners; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Step and phase from that memory event until the next span begins."""

    event: array[int] = field(default_factory=_i64)
    phase: array[int] = field(default_factory=_u8)
    """Index into PHASES."""
    step: array[int] = field(default_factory=_i32)
    where: array[int] = field(default_factory=_i32)
    """Index into Trace.owners: the line that started it; -1: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The purpose of allocations, beyond their Python stack. Names are indices into Trace.owners; -1: none."""

    operator: array[int] = field(default_factory=_i32)
    kernel: array[int] = field(default_factory=_i32)
    """The implementation chosen by the operator, if it has several: for attention, `flash`."""
    kernel_reason: array[int] = field(default_factory=_i32)
    """Why it did not choose the usual one: `not flash: not in half precision`."""
    module: array[int] = field(default_factory=_i32)
    rule: array[int] = field(default_factory=_i32)
    """Why the kernel needs extra memory: `cuBLAS workspace`."""
    phase: array[int] = field(default_factory=_i8)
    """Index into PHASES; -1: as given by the spans."""
    caller: array[int] = field(default_factory=_i32)
    """The row of the operator that called this one, or that created this node of a backward pass; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One row of `Origins`, by name."""

    operator: str | None = None
    kernel: str | None = None
    kernel_reason: str | None = None
    module: str | None = None
    rule: str | None = None
    phase: Phase | None = None
    caller: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunches:
    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    grid_x: array[int] = field(default_factory=_i64)
    grid_y: array[int] = field(default_factory=_i64)
    grid_z: array[int] = field(default_factory=_i64)
    block: array[int] = field(default_factory=_i64)
    """x + (y << 16) + (z << 32)."""
    shared_bytes: array[int] = field(default_factory=_i64)
    place: array[int] = field(default_factory=_i64)
    """device + (stream number << 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCode:
    """What a kernel occupies of an SM, by its machine code for the card of the run."""

    name: int
    """Index into Trace.names."""
    registers: int
    """Of a thread."""
    shared_bytes: int
    """Of a block, beside what is asked for at the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCalls:
    """Calls of library functions without a table of their own."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    workspace_bytes: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutions:
    """Convolutions by cuDNN, including gradients. x, y and w are input, output and weights, whichever is computed."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    workspace_bytes: array[int] = field(default_factory=_i64)
    x_bytes: array[int] = field(default_factory=_i64)
    y_bytes: array[int] = field(default_factory=_i64)
    w_bytes: array[int] = field(default_factory=_i64)
    multiply_adds: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)
    direction: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.DIRECTIONS."""
    workspace_source: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.WORKSPACE_SOURCES."""
    data_type: array[int] = field(default_factory=_u8)
    """cudnnDataType_t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProducts:
    """Matrix products by cuBLAS and cuBLASLt: m x k times k x n, column-major."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    m: array[int] = field(default_factory=_i64)
    n: array[int] = field(default_factory=_i64)
    k: array[int] = field(default_factory=_i64)
    batch_count: array[int] = field(default_factory=_i64)
    input_type: array[int] = field(default_factory=_u8)
    """cudaDataType."""
    output_type: array[int] = field(default_factory=_u8)
    compute_type: array[int] = field(default_factory=_u8)
    """cublasComputeType_t; 0: unknown."""
    device: array[int] = field(default_factory=_u8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Collectives and point-to-point transfers by NCCL."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    operation: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.COLLECTIVES."""
    count: array[int] = field(default_factory=_i64)
    """Elements, as in the call: for reduce_scatter and all_gather, those of one rank's part."""
    data_type: array[int] = field(default_factory=_u8)
    """ncclDataType_t."""
    bytes: array[int] = field(default_factory=_i64)
    num_ranks: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentNets:
    """Recurrent nets by cuDNN, including gradients."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    workspace_bytes: array[int] = field(default_factory=_i64)
    num_steps: array[int] = field(default_factory=_i64)
    batch_size: array[int] = field(default_factory=_i64)
    input_size: array[int] = field(default_factory=_i64)
    hidden_size: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)
    direction: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.DIRECTIONS."""
    cell: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.CELLS."""
    data_type: array[int] = field(default_factory=_u8)
    """cudnnDataType_t."""
    num_layers: array[int] = field(default_factory=_u16)
    num_directions: array[int] = field(default_factory=_u8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    bytes: array[int] = field(default_factory=_i64)
    route: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.ROUTES."""
    is_pinned: array[int] = field(default_factory=_u8)
    is_blocking: array[int] = field(default_factory=_u8)
    device: array[int] = field(default_factory=_u8)
    stream: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memsets:
    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    bytes: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)
    stream: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronizations:
    """The host waits for the GPU."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    waits_for: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.WAITS_FOR."""
    event: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)
    stream: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventUses:
    """Streams record events and wait for those of others."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    use: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.EVENT_USES."""
    event: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)
    stream: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLaunches:
    """Of captured CUDA graphs."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    num_nodes: array[int] = field(default_factory=_i64)
    graph: array[int] = field(default_factory=_i64)
    """As in `Captures`."""
    device: array[int] = field(default_factory=_u8)
    stream: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """When captures of CUDA graphs began and ended: the work between the two runs only when the graph is launched."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    edge: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.EDGES."""
    graph: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_u8)
    stream: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The operators of the recorded step, and those before it that were captured into graphs; one that another calls
    comes after it. Views are left out."""

    begin_us: array[int] = field(default_factory=_i64)
    end_us: array[int] = field(default_factory=_i64)
    signature: array[int] = field(default_factory=_i32)
    """Index into Trace.signatures."""
    parent: array[int] = field(default_factory=_i32)
    """The row of the operator that called it; -1 for none."""
    thread: array[int] = field(default_factory=_u8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """The step of which the operators are known."""

    kind: Literal["training", "inference"]
    step: int
    """Its index, or the number of the pass."""
    begin_us: int
    end_us: int
    cpu_us: int
    """CPU time that the process took for it, with foretell's hooks."""
    delay_us: int = 0
    """How long its main thread waited for a CPU that others had."""
    loading_us: int = 0
    """CPU time of loading batches in this process, with the hooks."""
    loop_us: float | None = None
    """CPU time of a fixed loop (inside/watch/operators.py): how fast this machine is; None: not measured."""
    phases: tuple[tuple[int, Phase], ...] = ()
    """When each began, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseResults:
    """Sums and products of sparse matrices by cuSPARSE."""

    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    workspace_bytes: array[int] = field(default_factory=_i64)
    entries: array[int] = field(default_factory=_i64)
    entries_are: array[int] = field(default_factory=_u8)
    """Index into protocol.native_log.ENTRIES."""
    device: array[int] = field(default_factory=_u8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """PyTorch's counters for one device at one moment."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    """Since the process started."""
    peak_reserved_bytes: int

    def check(self) -> None:
        """Raise a ValueError if PyTorch cannot have counted so: for numbers that were read from a file."""
        if not (0 <= self.device < 1 << 16 and 0 <= self.peak_allocated_bytes <= self.peak_reserved_bytes < 1 << 60):
            raise ValueError(f"counters of PyTorch that cannot be: {self}"[:200])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark:
    """The end of an optimizer step."""

    index: int
    time_us: int
    devices: tuple[DeviceMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLoop:
    """A loop over a DataLoader that foretell ended early."""

    kind: Literal["training", "evaluation"]
    remaining_seconds: float | None
    """The least time in which it would have ended; None: its length is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPass:
    """One pass over a DataLoader."""

    length: int | None
    """Batches in it."""
    num_samples: int | None
    """Of its dataset."""
    batch_size: int | None
    sampler: str
    """The class of its sampler."""
    num_workers: int
    is_training: bool = False
    """A backward pass followed one of its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMark:
    """The delivery of a batch."""

    loader: int
    """Index into Trace.loaders."""
    index: int
    """In the pass."""
    step: int
    """The current one at that time."""
    shape: int
    """Index into Trace.batch_shapes."""
    num_elements: int
    samples: tuple[int, ...] = ()
    num_samples: int = 0
    is_trained: bool = True
    """False: it was only looked at."""
    took_us: int | None = None
    """How long the script took to load it, without hooks and without the time in which others had the CPU; None: not
    measured. With workers, only what is left for this process."""
    worker_us: int | None = None
    """How long a worker process takes for a batch, as known by then; None: not measured, or there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMark:
    time_us: int
    oom: OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptException:
    """An uncaught exception of the script."""

    type: str
    message: str
    where: str | None
    is_oom: bool
    rank: int | None = None
    """The rank that raised it, in a job of several."""
    network: str | None = None
    """The host or repository it could not reach, because foretell kept it from the network."""
    unreached: str | None = None
    """A host that could not be reached before, which may be why it was raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorUse:
    """A communicator of NCCL, as one rank has used it."""

    size: int
    kinds: tuple[str, ...]
    """Of collectives."""
    buffer_bytes: int
    num_channels: int = 0
    ranks: tuple[int, ...] = ()
    """Its ranks in the job; empty: not known."""
    neighbours: tuple[int, ...] = ()
    """Those among them that are the next stages of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMark:
    """Which of the job's ranks a process is."""

    rank: int
    world_size: int
    local_rank: int | None
    """Its number on its machine, if the launcher has said it."""
    gpus_per_node: int | None = None
    communicators: tuple[CommunicatorUse, ...] = ()
    needed_by: int | None = None
    """The rank that needed its data, for which it was started."""
    needed_where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """What one of several processes took of the card."""

    pid: int
    begin_us: int
    end_us: int
    """From its first use of the GPU to its last sign of life."""
    peak_bytes: int
    """Its peak on the device of the trace, without context and libraries."""
    functions: tuple[str, ...]
    """The functions of NVIDIA's libraries that it called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Something that happened `count` times."""

    what: str
    where: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """A variable that holds more after every step."""

    name: str
    what: str
    """`a list of tensors that grows`"""
    where: str
    """The line that adds to it, otherwise its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFunction:
    """A CUDA function that was called but is not implemented by the virtual GPU."""

    name: str
    operator: str | None
    """PyTorch's operator, or the node of its backward pass; None if it was not called from Python."""
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    what: str
    hint: str


_TEXTS = ("redirected_writes", "not_sent", "ended_early", "caveats")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The complete record of one run."""

    command: tuple[str, ...]
    gpu: Gpu
    context_bytes: int
    is_context_given: bool
    libraries: LibraryBytes
    exit_status: int
    is_timed_out: bool
    is_over_host_memory: bool = False
    """Stopped at `CaptureOptions.most_host_bytes`."""
    is_interrupted: bool = False
    """By Ctrl-C, SIGTERM or SIGHUP to foretell."""
    seconds: dict[str, float]
    python_version: str | None
    torch_version: str | None
    cuda_version: str | None
    cudnn_version: int | None
    arch_list: tuple[str, ...]
    pid: int | None
    """The process that held the most; None if there was no Python process."""
    num_gpu_processes: int
    rank: RankMark | None = None
    """None: the process is not one of several ranks."""
    other_ranks: tuple[Trace, ...] = ()
    """The other ranks of the job, in their order; this one ran out of memory, or held the most."""
    gpu_processes: tuple[GpuProcess, ...] = ()
    """If there are several: those that used the busiest device, this one among them."""
    allocator: AllocatorSettings
    phases_seen: tuple[Phase, ...]
    steps: tuple[StepMark, ...]
    final: tuple[DeviceMemory, ...]
    """PyTorch's counters at the end of the process, or the last ones recorded."""
    is_ended: bool
    """The process wrote its last line, so it was not killed."""
    ooms: tuple[OomMark, ...]
    has_trained_since_oom: bool = False
    """A backward pass began after the last OOM."""
    exception: ScriptException | None
    unknown_reads: tuple[Counted, ...]
    unimplemented: tuple[MissingFunction, ...]
    unsupported: tuple[Unsupported, ...]
    redirected_writes: tuple[str, ...]
    not_sent: tuple[str, ...]
    ended_early: tuple[str, ...]
    is_cut_short: bool = False
    """foretell ended a loop early, or the script itself: code that ran after that may have met less than it needs."""
    cut_loops: tuple[CutLoop, ...] = ()
    endless_loop: str | None = None
    """The loop in which the run was ended, because it waits for a value that is not known."""
    caveats: tuple[str, ...]
    names: tuple[str, ...]
    """Names of kernels and functions, indexed by the tables."""
    frames: tuple[tuple[str, int, str], ...]
    """file, line, function."""
    stacks: tuple[tuple[int, ...], ...]
    """Numbers of frames, innermost first."""
    memory: MemoryEvents
    driver: DriverEvents
    kernels: KernelLaunches
    library: LibraryCalls
    """Calls without a table among the five below."""
    convolutions: Convolutions = field(default_factory=Convolutions)
    products: MatrixProducts = field(default_factory=MatrixProducts)
    collectives: Collectives = field(default_factory=Collectives)
    recurrent: RecurrentNets = field(default_factory=RecurrentNets)
    sparse: SparseResults = field(default_factory=SparseResults)
    copies: Copies = field(default_factory=Copies)
    memsets: Memsets = field(default_factory=Memsets)
    synchronizations: Synchronizations = field(default_factory=Synchronizations)
    event_uses: EventUses = field(default_factory=EventUses)
    graph_launches: GraphLaunches = field(default_factory=GraphLaunches)
    captures: Captures = field(default_factory=Captures)
    operators: Operators = field(default_factory=Operators)
    signatures: tuple[str, ...] = ()
    """Operators with the types and shapes of their inputs (protocol/operators.py)."""
    is_time_asked: bool = False
    """As in `CaptureOptions.time`."""
    host_factor: float | None = None
    """As in `CaptureOptions`."""
    price_per_hour: float | None = None
    connections: Connections = "assumed"
    """What is known of how the job's GPUs are connected."""
    kernel_code: tuple[KernelCode, ...] = ()
    """Of the kernels whose machine code was found; empty if time was not asked for."""
    recorded_step: RecordedStep | None = None
    """None: its operators are not known; see `CaptureOptions.time`."""
    used_by_others_bytes: int = 0
    """Memory of the card used by other processes."""
    context_below_bytes: int = 0
    """Of a context that was fitted to measured runs (`foretell calibrate --from-runs`): how much less it may be."""
    context_above_bytes: int = 0
    """The same: how much more."""
    labels: Labels = field(default_factory=Labels)
    spans: Spans = field(default_factory=Spans)
    origins: Origins = field(default_factory=Origins)
    owners: tuple[str, ...] = ()
    """Names and places, indexed by labels, spans and origins."""
    keepers: tuple[Keeper, ...] = ()
    card_queries: tuple[str, ...] = ()
    """What the script has asked about the card that differs between cards of one kind: its memory, its name."""
    engine: Engine = "virtual"
    """The engine that recorded it; old files, from before there were two, do not have it."""
    allocator_settings: str | None = None
    """The script's final settings, in the syntax of PYTORCH_ALLOC_CONF; None: it used no GPU, or the file is older."""
    cublas_workspace_config: str | None = None
    """CUBLAS_WORKSPACE_CONFIG of the process."""
    library_folders: tuple[str, ...] = ()
    """Library folders of its Python; empty: unknown."""
    need: Need | None = None
    need_unknown: str | None = None
    """As in `Estimate`: found out by another run."""
    own_folders: tuple[str, ...] = ()
    """Folders of the foretell code that ran in it."""
    isolation: Isolation | None = None
    """None: nothing ran, or the file is older."""
    foretell_version: str | None = None
    """The version of foretell that recorded it; None: the file is older."""
    loaders: tuple[LoaderPass, ...] | None = None
    """Passes over DataLoaders, in their order; None: nothing ran, or the file is older."""
    batches: tuple[BatchMark, ...] = ()
    """In order of delivery."""
    batch_shapes: tuple[tuple[TensorShape, ...], ...] = ()

    def __post_init__(self) -> None:
        """A trace is sent around, with all that is made of it: it has no secrets, whoever makes it."""
        masked = {
            "command": mask_command(self.command),
            "ooms": tuple(replace(each, oom=replace(each.oom, message=mask(each.oom.message))) for each in self.ooms),
            "exception": self.exception and replace(self.exception, message=mask(self.exception.message)),
            "unsupported": tuple(Unsupported(what=mask(each.what), hint=mask(each.hint)) for each in self.unsupported),
            **{name: tuple(map(mask, getattr(self, name))) for name in _TEXTS},
        }
        for name, value in masked.items():
            object.__setattr__(self, name, value)

    @property
    def busiest_device(self) -> int:
        """The device with the highest reserved peak."""
        seen = [*(counters for step in self.steps for counters in step.devices), *self.final]
        return max(seen, key=lambda counters: counters.peak_reserved_bytes).device if seen else 0

    def origin(self, number: int) -> Origin:
        """One row of `origins`; an empty one for -1."""
        if number < 0:
            return Origin()
        rows, phase = self.origins, self.origins.phase[number]

        def name(column: array[int]) -> str | None:
            return self.owners[column[number]] if column[number] >= 0 else None

        return Origin(
            operator=name(rows.operator),
            kernel=name(rows.kernel),
            kernel_reason=name(rows.kernel_reason),
            module=name(rows.module),
            rule=name(rows.rule),
            phase=PHASES[phase] if phase >= 0 else None,
            caller=rows.caller[number] if rows.caller[number] >= 0 else None,
        )

    def library_functions(self) -> set[str]:
        """The functions of NVIDIA's libraries that were called."""
        tables = (self.library, self.convolutions, self.products, self.collectives, self.recurrent, self.sparse)
        return named(self.names, tables)

    @property
    def has_ruled_workspaces(self) -> bool:
        """Whether the workspace of a convolution follows foretell's rule, because there was no cuDNN to ask."""
        return WORKSPACE_SOURCES.index("rule") in self.convolutions.workspace_source


LibraryTable = LibraryCalls | Convolutions | MatrixProducts | Collectives | RecurrentNets | SparseResults


def named(names: Sequence[str], tables: Iterable[LibraryTable]) -> set[str]:
    """The functions that these tables refer to."""
    numbers = {number for table in tables for number in set(table.name)}
    return {names[number] for number in numbers if number < len(names)}
