"""The nouns that pass between foretell's rooms. Standard library only; bytes are integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Phase = Literal["forward", "backward", "optimizer", "evaluation", "other"]
Verdict = Literal["fits", "oom"]
Engine = Literal["virtual", "cpu"]


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
