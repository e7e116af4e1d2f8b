"""The nouns that pass between foretell's rooms. Standard library only; bytes are integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Phase = Literal["forward", "backward", "optimizer", "evaluation", "other"]
Verdict = Literal["fits", "oom"]
Engine = Literal["virtual", "cpu"]
Category = Literal[
    "parameter", "buffer", "gradient", "optimizer_state", "activation", "input", "temporary", "workspace"
]
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card, as CUDA would describe it."""

    name: str
    """How foretell's users write it: `rtx-3060`."""
    device_name: str
    """How CUDA writes it: `NVIDIA GeForce RTX 3060`."""
    compute_capability: tuple[int, int]
    num_sms: int
    total_bytes: int
    """`torch.cuda.get_device_properties(0).total_memory`: less than what is printed on the box."""
    is_measured: bool
    """total_bytes was read off a real card, rather than derived from the size on the box."""
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
    """Peak, dense, fp16/bf16 with fp32 accumulation on tensor cores; 0.0 where there are none."""
    pci_device_id: int
    context_bytes: int
    """A first guess of what an empty CUDA process takes."""

    def __post_init__(self) -> None:
        assert min(self.total_bytes, self.num_sms) > 0, f"{self.name}: {self.total_bytes} bytes, {self.num_sms} SMs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The most the job held, in the words of the README."""

    allocated_bytes: int
    reserved_bytes: int
    library_bytes: int
    context_bytes: int
    device_low_bytes: int
    device_high_bytes: int
    """With `device_low_bytes` the interval that holds 95 of 100 runs."""
    request_bytes: int
    """What to ask a scheduler for: 99 of 100 runs need less."""

    @property
    def device_bytes(self) -> int:
        return self.reserved_bytes + self.library_bytes + self.context_bytes

    def __post_init__(self) -> None:
        assert self.device_low_bytes <= self.device_bytes <= self.device_high_bytes <= self.request_bytes, self


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak:
    """The most held during one optimizer step (from the end of the one before to its own end)."""

    index: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Where PyTorch ran out of memory."""

    step: int
    phase: Phase
    requested_bytes: int
    message: str
    """PyTorch's own words."""
    where: str | None
    """`file:line` in the user's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryBytes:
    """What a library takes on the card, outside PyTorch's allocator, once its first handle is made."""

    cublas: int
    cudnn: int
    nccl: int
    cudnn_batch_norm: int = 0
    """More of cuDNN, with the first batch normalization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """One run of the user's command on the virtual GPU, and where it left what it knew."""

    directory: Path
    command: tuple[str, ...]
    gpu: Gpu
    context_bytes: int
    is_context_given: bool
    """The user said what an empty process takes, so nothing about it is a guess."""
    libraries: LibraryBytes
    exit_status: int
    """Of the command, as `subprocess` counts: negative means killed by that signal."""
    is_timed_out: bool
    seconds: float
    used_by_others_bytes: int = 0
    """Of the card, by whoever else is on it."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the environment, set for this run alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of PyTorch's allocator, from its allocation to its free."""

    address: int
    bytes: int
    """As `memory_allocated` counts it: rounded up."""
    requested_bytes: int
    begin: int
    """The number of the event that allocated it, among those of its device."""
    end: int | None
    """Of the event that freed it; None: held to the end."""
    category: Category
    name: str | None
    """Of the parameter or buffer that it is, or that it is the gradient or the state of."""
    module: str | None
    """`LlamaForCausalLM.model.layers.7.mlp.up_proj`; None: made outside of any module."""
    operator: str | None
    phase: Phase | Literal["recomputation"]
    step: int
    where: str | None
    """`file:line` in the user's code, or in a library's where none of the user's was on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From this event on, until the next span begins."""

    begin: int
    step: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What the allocator got from CUDA in one piece, or a run of mapped pages of an expandable segment."""

    address: int
    bytes: int
    is_small: bool
    """Of the pool for requests up to 1 MiB."""
    parts: tuple[tuple[int, int, int | None], ...]
    """Offset, bytes, and which of `Attribution.blocks` it is; None: free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Who held the memory of one device, and when. Events are numbered from 0, and levels are those after an event."""

    num_events: int
    blocks: tuple[Block, ...]
    """In the order of their allocation."""
    spans: tuple[Span, ...]
    reserved: tuple[tuple[int, int], ...]
    """Event and bytes, where it changes."""
    peak_event: int
    """With which allocated was highest first."""
    at_peak: tuple[int, ...]
    """Numbers of the blocks held then, the largest first. Their bytes are the allocated peak."""
    fragmentation_bytes: int
    """Free at the peak, in segments that are partly in use."""
    slack_bytes: int
    """The rest of the reserved peak: whole segments in the cache, or reserved at another moment."""
    segments: tuple[Segment, ...]
    """At the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory made at one line that is more after each step."""

    where: str | None
    module: str | None
    bytes_per_step: int
    held_bytes: int
    """At the end of the last step."""
    num_blocks: int
    held_by: tuple[str, ...] = ()
    """Variables that hold more after each step, as in `losses (a list of tensors that grows, train.py:12)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change, and what it is worth."""

    title: str
    how: str
    """What to write."""
    saved_bytes: int
    """Of the reserved peak; negative when it would take more."""
    peak_reserved_bytes: int
    """With the change."""
    basis: Literal["measured", "estimated"]
    """measured: the job was run with the change."""
    price: str
    """What it costs: time, precision."""
    verdict: Verdict = "fits"
    """On the job's card, with the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The answer: what the job needs on that card, and how sure that is."""

    engine: Engine
    verdict: Verdict
    gpu: Gpu
    torch_version: str
    cuda_version: str | None
    peak: PeakMemory
    peak_step: int | None
    """The step in which reserved was highest first; None when the peak was not in a training step."""
    steps: tuple[StepPeak, ...]
    oom: OutOfMemory | None
    phases_seen: tuple[Phase, ...]
    caveats: tuple[str, ...]
    redirected_writes: tuple[str, ...]
    not_sent: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    ended_early: tuple[str, ...] = ()
    """How and where the run was ended before its own end; empty when it ran to it."""
    library_names: tuple[str, ...] = ()
    """Those whose own memory is in `peak.library_bytes`."""
    is_context_given: bool = False
    used_by_others_bytes: int = 0
    """Of the card, by whoever else is on it; the job had to do without."""
    attribution: Attribution | None = None
    """Who held the memory; None where the history does not tell."""
    leaks: tuple[Leak, ...] = ()
    advice: tuple[Advice, ...] | None = None
    """None: not asked for."""
