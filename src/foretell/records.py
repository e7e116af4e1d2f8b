"""The records that foretell's packages exchange. Standard library only; bytes are integers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args, overload

from .units import format_bytes

Phase = Literal["forward", "backward", "optimizer", "evaluation", "other"]
Verdict = Literal["fits", "oom"]
Engine = Literal["virtual", "cpu"]
IsolationMode = Literal["kernel", "python", "none"]
GpuClass = Literal["consumer", "workstation", "datacenter"]
Category = Literal[
    "parameter", "buffer", "gradient", "optimizer_state", "activation", "input", "temporary", "workspace"
]
OutsideKind = Literal["before", "evaluation", "unfinished", "after"]
"""`before` and `after`: before the first step and after the last; `evaluation`: forward passes without gradients;
`unfinished`: the step that was running when the run ended."""
ConvolutionKind = Literal["plain", "asked", "ruled", "unruled"]
"""What computes the convolutions: none, or cuDNN with workspaces that it was asked for (or that were measured), that
follow a rule, or that are taken to be zero because there is no rule for the card."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
CONVOLUTION_KINDS: tuple[ConvolutionKind, ...] = get_args(ConvolutionKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card, as CUDA would describe it."""

    name: str
    """As users write it: `rtx-3060`."""
    device_name: str
    """As CUDA reports it: `NVIDIA GeForce RTX 3060`."""
    compute_capability: tuple[int, int]
    num_sms: int
    total_bytes: int
    """`torch.cuda.get_device_properties(0).total_memory`: less than the advertised size."""
    is_measured: bool
    """total_bytes was read from a real card, not derived from the advertised size."""
    shared_bytes_per_block: int
    shared_bytes_per_block_optin: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    memory_bus_bits: int
    clock_khz: int
    memory_clock_khz: int
    bandwidth_bytes_per_second: int
    fp32_flops: float
    """Peak, dense, without tensor cores."""
    tensor_flops: float
    """Peak, dense, fp16/bf16 with fp32 accumulation on tensor cores; 0.0 if there are none."""
    pci_device_id: int
    context_bytes: int
    """Estimated memory of an empty CUDA process."""
    gpu_class: GpuClass | None = None
    """How it is sold; None: described by its memory, or read from an older file."""
    power_watts: int | None = None
    """Power of the board as sold; None as for `gpu_class`."""

    def __post_init__(self) -> None:
        assert min(self.total_bytes, self.num_sms) > 0, f"{self.name}: {self.total_bytes} bytes, {self.num_sms} SMs"

    def available_bytes(self, used_by_others_bytes: int) -> int:
        """Memory that is available to a job in total."""
        return self.total_bytes - used_by_others_bytes


CauseName = Literal[
    "context", "libraries", "convolutions", "lengths", "streams", "values", "workspaces", "connections",
    "script", "remainder",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason why a job may use less or more memory than estimated. The interval and the request are the sums of
    their causes."""

    name: CauseName
    below_bytes: int
    """How far below the estimate the interval reaches because of it."""
    above_bytes: int
    request_bytes: int
    """What it adds to the request: at least `above_bytes`."""
    why: str

    def __post_init__(self) -> None:
        assert self.below_bytes >= 0, self
        assert 0 <= self.above_bytes <= self.request_bytes, self


RepeatKind = Literal["workspaces", "events", "values", "order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A run of the same job with another choice (`--interval simulated`)."""

    kind: RepeatKind
    name: str
    moved_bytes: int
    """Its reserved peak less that of the job unchanged."""


Connections = Literal["assumed", "described", "given"]
"""How it is known what NCCL's buffers take: from what machines with such cards have, from how the GPUs are connected,
or because somebody has measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What of a run decides how sure its estimate is."""

    kind: ConvolutionKind
    reserved_bytes: int
    context_bytes: int
    is_context_given: bool
    library_bytes: int
    workspaces_less_bytes: int = 0
    """How far the peak falls at most if cuDNN chooses other workspaces."""
    workspaces_more_bytes: int = 0
    """How far it rises."""
    sums_less_bytes: int = 0
    """How far it falls at most if cuDNN sums the gradients of weights in more or fewer parts."""
    sums_more_bytes: int = 0
    alike_less_bytes: int = 0
    """How far it falls at most if many convolutions choose other workspaces together."""
    alike_more_bytes: int = 0
    context_below_bytes: int = 0
    """Of a context that was fitted to measured runs: how much less it may be."""
    context_above_bytes: int = 0
    is_context_kind_measured: bool = False
    """An empty process was measured on a card of this architecture."""
    are_libraries_measured: bool = False
    waiting_bytes: int = 0
    """Blocks that waited for another stream."""
    shorter_bytes: int = 0
    """How much less the job may take because batches differ in shape."""
    longer_bytes: int = 0
    """How much more."""
    are_lengths_unknown: bool = False
    """Batches differ in shape, and larger ones than those seen may come."""
    connection_bytes: int = 0
    """NCCL's buffers, which depend on the topology."""
    connections: Connections = "assumed"
    undocumented_bytes: int = 0
    """The largest workspace that follows no documentation: of recurrent nets, Fourier transforms, solvers."""
    repeats: tuple[Repeat, ...] = ()
    """Where the interval was simulated: the job with other choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The peak memory of the job, by the terms of the README."""

    allocated_bytes: int
    reserved_bytes: int
    library_bytes: int
    context_bytes: int
    device_low_bytes: int
    device_high_bytes: int
    """With `device_low_bytes`, the interval that contains 95 % of runs."""
    request_bytes: int
    """What to request from a scheduler: enough for 99 % of runs."""

    @property
    def device_bytes(self) -> int:
        return self.reserved_bytes + self.library_bytes + self.context_bytes

    def __post_init__(self) -> None:
        assert self.device_low_bytes <= self.device_bytes <= self.device_high_bytes <= self.request_bytes, self


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak:
    """The peak of one optimizer step, from the end of the previous step to its own end, without an evaluation in
    between."""

    index: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @property
    def place(self) -> str:
        return f"step {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsidePeak:
    """The peak of something that ran before, between or after the optimizer steps."""

    kind: OutsideKind
    after_step: int | None
    """The last step before it; None: the first step was still to come."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @property
    def place(self) -> str:
        """In words: `evaluation after step 3`."""
        if self.kind == "unfinished":
            return f"step {0 if self.after_step is None else self.after_step + 1}, unfinished"
        what = "evaluation " if self.kind == "evaluation" else ""
        if self.after_step is None:
            return f"{what}before training"
        return f"{what}after step {self.after_step}" if what else "after training"


def in_order(steps: Iterable[StepPeak], outside: Iterable[OutsidePeak]) -> list[StepPeak | OutsidePeak]:
    """In the order they ran; `outside` is in order itself."""

    def key(row: StepPeak | OutsidePeak) -> tuple[int, bool]:
        if isinstance(row, StepPeak):
            return row.index, False
        return -1 if row.after_step is None else row.after_step, True

    return sorted([*steps, *outside], key=key)


def first_at(
    reserved_bytes: int, steps: Iterable[StepPeak], outside: Iterable[OutsidePeak]
) -> StepPeak | OutsidePeak | None:
    """The first with that much reserved memory."""
    return next((row for row in in_order(steps, outside) if row.peak_reserved_bytes >= reserved_bytes), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """A tensor of a batch."""

    name: str
    """Within the batch: `input_ids`, `1.boxes`; empty if the batch is a tensor."""
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that a DataLoader delivered for training, and the peak of the step that it was for."""

    index: int
    """In its pass over the DataLoader."""
    epoch: int
    """The pass, among those that were trained on."""
    step: int
    tensors: tuple[TensorShape, ...]
    num_elements: int
    samples: tuple[int, ...]
    """The first of its indices in the dataset; empty if the sampler does not tell."""
    num_samples: int
    peak_allocated_bytes: int | None
    """None if the peaks of steps are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The batches with the same shapes and dtypes."""

    tensors: tuple[TensorShape, ...]
    num_elements: int
    num_batches: int
    """Trained on or looked at."""
    peak_allocated_bytes: int | None
    """The highest of the steps in which such a batch was the largest; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of the training, as its DataLoader delivered them."""

    num: int
    """Trained on; 0: no DataLoader was seen."""
    num_in_epoch: int | None = None
    """The length of the DataLoader, if it has one."""
    num_epochs: int = 0
    """Passes over it, whole or not."""
    num_looked_at: int = 0
    """Batches of an epoch whose shapes are all known, although few were trained on (`--data-only`)."""
    num_shapes: int = 0
    median_peak_allocated_bytes: int | None = None
    """Of the steps."""
    worst: Batch | None = None
    """The batch of the step with the highest allocated peak, or of the one that ran out of memory."""
    shapes: tuple[BatchShape, ...] = ()
    """The largest, by their number of elements."""
    largest_possible: tuple[TensorShape, ...] = ()
    """If the samples are shuffled, and an epoch with all of them is known: no batch of any shuffle is larger than this,
    if batches are padded to their longest sample. Each dimension is the largest of any batch. Otherwise empty."""
    is_largest_trained: bool = False
    """A batch of the shape `largest_possible` was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The recorded steps, replayed in random orders."""

    num: int
    num_oom: int
    """Orders that run out of memory."""
    oom_low: float
    oom_high: float
    """The 95 % interval of the probability that an order does."""
    num_steps: int
    num_steps_moved: int
    """Without those that have to stay in their places."""
    least_reserved_bytes: int | None
    median_reserved_bytes: int | None
    most_reserved_bytes: int | None
    """Reserved peaks of the orders that fit; None if there are none."""
    recorded_reserved_bytes: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Where PyTorch ran out of memory."""

    step: int
    phase: Phase
    requested_bytes: int
    message: str
    """PyTorch's own message."""
    where: str | None
    """`file:line`, the deepest of a model, in the user's code or in a library."""
    is_together: bool = False
    """Each process fits on its own, but together they need more than the card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Several processes that used the GPU at the same time, each with its own CUDA context."""

    num_processes: int
    device_bytes: int
    """At most: the sum of their peaks, which need not coincide."""
    reserved_bytes: int


Bound = Literal["gpu", "host", "loader", "copies", "mixed"]
"""What a step waits for most: mixed if nothing stands out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a step takes, once training is steady."""

    kind: Literal["training", "inference"]
    """A step of the optimizer, or one pass of a model without gradients."""
    step_ms: float
    step_low_ms: float
    step_high_ms: float
    gpu_busy_ms: float
    """At least one kernel or copy runs on the GPU."""
    host_ms: float
    """The CPU's own time to issue the step, without waiting for the GPU or for data."""
    loader_ms: float
    copy_ms: float
    """Copies between host and GPU."""
    bound: Bound
    samples_per_second: float | None
    """None if the batches of the step are not known."""
    phases: dict[str, float]
    """Milliseconds, by phase."""
    host_factor: float
    """How much slower than the CPU of this machine the host is taken to be."""
    host_factor_source: Literal["typical", "given"]

    def __post_init__(self) -> None:
        assert 0 < self.step_low_ms <= self.step_ms <= self.step_high_ms, self


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Shares of a steady step, as NVIDIA's DCGM counts them."""

    gpu: float
    """GPU utilization of nvidia-smi."""
    gract: float
    """Graphics engine active: some kernel runs."""
    smact: float
    """SM active: SMs that hold at least one warp."""
    smocc: float
    """SM occupancy: warps on the SMs, of all they can hold."""
    tensor_active: float
    fp32_active: float
    dram_active: float
    """Memory bandwidth used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A time of a step in which nothing runs on the GPU."""

    begin_ms: float
    ms: float
    before: str | None
    """The operator or function that ends it; None: the step ends first."""
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTimeline:
    """The same over one steady step, in buckets of equal length."""

    bucket_ms: float
    gract: tuple[float, ...]
    smact: tuple[float, ...]
    dram_active: tuple[float, ...]
    phase: tuple[Phase, ...]
    """The phase that the GPU works for, or worked for last."""
    kernels: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """The share of each bucket by class of kernel, in the order of `Performance.kernels`; copies are a class."""
    waits: tuple[Wait, ...] = ()
    """The longest times in which nothing runs, of a bucket or more; longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """GPU time of all kernels of a class, or of a module."""

    name: str
    ms: float
    share: float
    """Of the time of all kernels."""
    of_peak: float
    """FLOPs, relative to what the card sustains."""
    of_bandwidth: float
    module: str | None
    """Where most of it is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Time and utilization of a steady step on one card. None of it is measured on that card."""

    time: StepTime
    activity: Activity
    activity_low: Activity
    activity_high: Activity
    timeline: ActivityTimeline
    kernels: tuple[KernelTime, ...]
    """By class, slowest first."""
    modules: tuple[KernelTime, ...]
    """By module, slowest first; empty without attribution."""
    unknown_share: float
    """Of the kernels' time: operators without a rule."""
    joules: float | None
    """Energy of the card for a step; None if its power is not known."""
    price_per_hour: float | None = None
    """Of the card, as given."""
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks of a job."""

    size: int
    ranks_run: tuple[int, ...]
    worst_rank: int
    """The one that the estimate is about: it runs out of memory, or needs the most."""
    gpus_per_node: int | None = None
    unknown: tuple[int, ...] = ()
    """Ranks that were not run, and are not like any that was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A communicator of NCCL, as one rank uses it."""

    name: str
    size: int
    channels: int
    """An assumption about how the cards are connected."""
    kinds: tuple[str, ...]
    """Of collectives."""
    bytes: int
    """Of its buffers on this card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEstimate:
    """What one rank needs, and all others that use memory just as it does."""

    rank: int
    stands_for: tuple[int, ...]
    """All ranks with these numbers, itself among them: those that were run and need the same, and those that were not
    run and are taken to."""
    local_rank: int | None
    verdict: Verdict
    peak: PeakMemory
    num_steps: int
    spare_bytes: int
    """Of its card; negative if it does not fit."""
    oom: OutOfMemory | None = None
    is_complete: bool = True
    """False: it was stopped before its end, because another rank had failed."""
    needed_by: int | None = None
    """It was not asked for, but run because that rank needs its data."""
    nccl_bytes: int = 0
    """NCCL's buffers, which are part of the libraries."""
    communicators: tuple[Communicator, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job that ran out of memory needs: it was run again, on a card of the same kind with much more memory."""

    device_bytes: int
    reserved_bytes: int
    request_bytes: int
    """As in `PeakMemory`."""
    smallest_gpus: tuple[str, ...]
    """Names of the smallest known cards that it fits on, smallest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBy:
    """What ended a run before its time."""

    kind: Literal["script", "early_end", "time_limit", "host_memory", "interrupted", "unknown_value"]
    """script: it failed or was killed; early_end: it failed after foretell had ended a loop early; unknown_value:
    it would have waited for one for ever."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryBytes:
    """The memory a library uses outside PyTorch's allocator once its first handle exists."""

    cublas: int
    cudnn: int
    nccl: int
    cudnn_batch_norm: int = 0
    """Additional memory of cuDNN from the first batch normalization on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConvolution:
    """The workspace cuDNN requested for one convolution."""

    direction: Literal["forward", "weights", "data"]
    element_bytes: int
    x: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    workspace_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Values measured on a real card (`foretell calibrate`), used instead of guesses."""

    device_name: str
    total_bytes: int
    torch_version: str
    cuda_version: str
    cudnn_version: int
    driver_version: str
    context_bytes: int
    libraries: LibraryBytes
    convolutions: tuple[MeasuredConvolution, ...] = ()
    num_runs: int = 0
    """Measured runs that the context was fitted to; 0: it was measured itself."""
    context_below_bytes: int = 0
    """How much less the context may be than fitted."""
    context_above_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of PyTorch's allocator, from its allocation to its free."""

    address: int
    bytes: int
    """Rounded up, as in `memory_allocated`."""
    requested_bytes: int
    begin: int
    """Index of the event that allocated it, among those of its device."""
    end: int | None
    """Index of the event that freed it; None if held to the end."""
    category: Category
    name: str | None
    """The parameter or buffer itself, or the one whose gradient or optimizer state this is."""
    module: str | None
    """`LlamaForCausalLM.model.layers.7.mlp.up_proj`; None if allocated outside any module."""
    operator: str | None
    phase: Phase | Literal["recomputation"]
    step: int
    where: str | None
    """`file:line`, the deepest of a model, in the user's code or in a library (docs/attribution.md)."""


class BlockKind(NamedTuple):
    """Everything about a block except its size and time: every step allocates the same tensors at the same places."""

    category: Category
    name: str | None
    module: str | None
    operator: str | None
    phase: Phase | Literal["recomputation"]
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks(Sequence[Block]):
    """Blocks in columns, because a long run has millions; a `Block` is created on access."""

    address: array[int]
    bytes: array[int]
    requested_bytes: array[int]
    begin: array[int]
    end: array[int]
    """-1: held to the end."""
    step: array[int]
    kind: array[int]
    """Index into `kinds`."""
    kinds: tuple[BlockKind, ...]
    """In the order of their first block."""

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Blocks:
        if isinstance(blocks, Blocks):
            return blocks
        rows = list(blocks)
        kinds: dict[BlockKind, int] = {}
        kind = array("q", (kinds.setdefault(kind_of(block), len(kinds)) for block in rows))

        def column(values: Iterable[int]) -> array[int]:
            return array("q", values)

        return cls(
            address=array("Q", (block.address for block in rows)),
            bytes=column(block.bytes for block in rows),
            requested_bytes=column(block.requested_bytes for block in rows),
            begin=column(block.begin for block in rows),
            end=column(-1 if block.end is None else block.end for block in rows),
            step=column(block.step for block in rows),
            kind=kind,
            kinds=tuple(kinds),
        )

    def __len__(self) -> int:
        return len(self.begin)

    @overload
    def __getitem__(self, at: int) -> Block: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Block]: ...
    def __getitem__(self, at: int | slice) -> Block | Sequence[Block]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        category, name, module, operator, phase, where = self.kinds[self.kind[at]]
        return Block(
            address=self.address[at],
            bytes=self.bytes[at],
            requested_bytes=self.requested_bytes[at],
            begin=self.begin[at],
            end=None if self.end[at] < 0 else self.end[at],
            category=category,
            name=name,
            module=module,
            operator=operator,
            phase=phase,
            step=self.step[at],
            where=where,
        )

    def __iter__(self) -> Iterator[Block]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Block.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def kind_of(block: Block) -> BlockKind:
    return BlockKind(block.category, block.name, block.module, block.operator, block.phase, block.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Step and phase from this event until the next span begins."""

    begin: int
    step: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment from CUDA, or a run of mapped pages of an expandable segment."""

    address: int
    bytes: int
    is_small: bool
    """Belongs to the pool for requests up to 1 MiB."""
    parts: tuple[tuple[int, int, int | None], ...]
    """Offset, bytes, and index into `Attribution.blocks`; None: free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Who held the memory of one device, and when. Events are numbered from 0; levels are those after an event."""

    device: int
    num_events: int
    blocks: Sequence[Block]
    """In order of allocation."""
    spans: tuple[Span, ...]
    reserved: tuple[tuple[int, int], ...]
    """Event and bytes, at each change."""
    peak_event: int
    """The event at which allocated memory first reached its peak."""
    at_peak: tuple[int, ...]
    """Indices of the blocks held at the peak, largest first. Their bytes sum to the allocated peak."""
    fragmentation_bytes: int
    """Free at the peak, in segments that are partly in use."""
    slack_bytes: int
    """The rest of the reserved peak: whole segments in the cache, or reserved at another moment."""
    segments: tuple[Segment, ...]
    """At the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory allocated at one line that grows with every step."""

    where: str | None
    module: str | None
    bytes_per_step: int
    held_bytes: int
    """At the end of the last step."""
    num_blocks: int
    held_by: tuple[str, ...] = ()
    """Variables that hold more after every step, as in `losses (a list of tensors that grows, train.py:12)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change and its effect on memory."""

    title: str
    how: str
    """The code to write."""
    saved_bytes: int
    """Reduction of the reserved peak; negative if the change needs more."""
    peak_reserved_bytes: int
    """With the change."""
    basis: Literal["measured", "estimated"]
    """measured: the job was run with the change."""
    price: str
    """The cost of the change: time, precision."""
    step_ms: float | None = None
    """How long a step takes with the change; None: not known."""
    step_ms_before: float | None = None
    """Without it."""
    verdict: Verdict = "fits"
    """On the job's card, with the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What kept a run from changing files and from sending data (docs/isolation.md)."""

    mode: IsolationMode
    reason: str | None = None
    """Why it is not the kernel's, although that was wanted."""
    is_online: bool = False
    read_only: tuple[str, ...] = ()
    """Folders that the script could not write to, because no layer could cover them."""
    is_in_memory: bool = False
    """The layers took memory, because the scratch folder cannot hold them."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Estimate:
    """The result: how much memory the job needs on that card, and how certain that is."""

    engine: Engine
    verdict: Verdict
    gpu: Gpu
    torch_version: str
    cuda_version: str | None
    peak: PeakMemory
    peak_step: int | None
    """The step in which reserved memory first reached its peak; None if the peak was outside training steps."""
    steps: tuple[StepPeak, ...]
    oom: OutOfMemory | None
    phases_seen: tuple[Phase, ...]
    caveats: tuple[str, ...]
    redirected_writes: tuple[str, ...]
    not_sent: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    """`total`; of it `script`, with `import_torch` inside, and `analysis` after it. The rest: its process starts and
    ends."""
    command: tuple[str, ...] = ()
    ended_early: tuple[str, ...] = ()
    """How and where the run was stopped early; empty if it ran to completion."""
    num_unknown_reads: int = 0
    """Unknown values that the script has read without deciding anything by them: losses that it prints."""
    library_names: tuple[str, ...] = ()
    """Libraries whose own memory is in `peak.library_bytes`."""
    is_context_given: bool = False
    used_by_others_bytes: int = 0
    """Memory of the card used by other processes, not available to the job."""
    attribution: Attribution | None = None
    """Who held the memory; None if the history is incomplete."""
    leaks: tuple[Leak, ...] = ()
    outside_steps: tuple[OutsidePeak, ...] = ()
    """In the order they ran. Empty also if the history is incomplete."""
    advice: tuple[Advice, ...] | None = None
    """None: not requested."""
    together: Together | None = None
    """If several processes used the GPU at the same time; `peak` is that of the largest. The verdict is about all."""
    need: Need | None = None
    """What the job needs, if it ran out of memory and that was found out."""
    need_unknown: str | None = None
    """Why `need` could not be found out."""
    ended_by: EndedBy | None = None
    """What ended the run before its time: the numbers are those up to then. None: the run is complete."""
    isolation: Isolation | None = None
    """None: the job did not run here, or its trace is older."""
    foretell_version: str | None = None
    """The version of foretell that ran the job; None: not noted, because it is older."""
    batches: Batches | None = None
    """None: not recorded, because nothing was trained or the trace is older."""
    orders: Orders | None = None
    """None: not requested."""
    performance: Performance | None = None
    """Time and utilization of a step; None: not requested, or not known (a caveat says why)."""
    world: World | None = None
    """None: the job is one process."""
    ranks: tuple[RankEstimate, ...] = ()
    """Those of `world`, in their order; equal ones once."""
    causes: tuple[Cause, ...] = ()
    """What the interval and the request of `peak` are made of; empty: the file is older."""
    evidence: Evidence | None = None
    """What the causes follow from; None: the file is older."""

    @property
    def complete(self) -> bool:
        return self.ended_by is None

    @property
    def has_verdict(self) -> bool:
        """False if the script failed, or was stopped before its first training step: it may need more than was seen."""
        kind = self.ended_by.kind if self.ended_by is not None else None
        is_early = kind in ("time_limit", "interrupted") and not self.steps and self.oom is None
        return kind != "script" and not is_early

    @property
    def device_bytes(self) -> int:
        """What the job needs of the card, all of its processes together."""
        return self.peak.device_bytes + self.other_processes_bytes

    @property
    def available_bytes(self) -> int:
        """Memory of the card that is available to the job in total."""
        return self.gpu.available_bytes(self.used_by_others_bytes)

    @property
    def spare_bytes(self) -> int:
        """Memory that the job leaves over; negative if it does not fit."""
        return self.available_bytes - self.device_bytes

    @property
    def request_bytes(self) -> int:
        """What to request from a scheduler for all of the job's processes: enough for 99 % of runs."""
        return self.peak.request_bytes + self.other_processes_bytes

    @property
    def other_processes_bytes(self) -> int:
        """Of the job's processes besides the largest."""
        return max(0, self.together.device_bytes - self.peak.device_bytes) if self.together else 0

    @property
    def peak_place(self) -> str | None:
        """Where reserved memory first reached its peak: `step 1`, `evaluation after step 3`; None if not known."""
        first = first_at(self.peak.reserved_bytes, self.steps, self.outside_steps)
        return None if first is None else first.place

    def __str__(self) -> str:
        """Two lines, the verdict and the memory needed; a third if the run is incomplete."""
        peak = self.peak
        verdict = "fits" if self.verdict == "fits" else "runs out of memory"
        sizes = (peak.device_bytes, peak.device_low_bytes, peak.device_high_bytes, peak.request_bytes)
        needs, low, high, request = (format_bytes(size + self.other_processes_bytes) for size in sizes)
        if self.ended_by is not None:
            verdict += " so far"
        return (
            f"{verdict} on {self.gpu.device_name}: {needs} of {format_bytes(self.available_bytes)} ({low} to {high})\n"
            f"allocated {format_bytes(peak.allocated_bytes)}, reserved {format_bytes(peak.reserved_bytes)}, "
            f"request {request}; {len(self.steps)} steps, torch {self.torch_version}"
            + (f"\nincomplete: {self.ended_by.message}" if self.ended_by is not None else "")
        )

    def __repr__(self) -> str:
        needs = format_bytes(self.device_bytes)
        return f"<Estimate: {self.verdict} on {self.gpu.name}, {needs} of {format_bytes(self.gpu.total_bytes)}>"

    def _repr_html_(self) -> str:
        """The HTML shown in a notebook."""
        from .report import notebook

        return notebook.render(self)

    def to_json(self) -> str:
        """Schema `foretell.estimate/1`, as `foretell run --json` writes it."""
        from .report import json

        return json.render(self)

    @classmethod
    def from_json(cls, text: str) -> Estimate:
        """Read the JSON written by `to_json` of this or an older foretell. `attribution` is None then: JSON carries
        only its sums and largest blocks. Raises `TraceError` if the document is something else or damaged."""
        from .report import json

        return json.read(text)
