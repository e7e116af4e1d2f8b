"""What a trace holds. Large tables are columns of plain numbers; everything else is small and frozen."""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

from foretell.records import Engine, Gpu, LibraryBytes, OutOfMemory, Phase
from foretell.units import MIB

ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom", "user_defined",
)  # fmt: skip
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "evaluation", "other")

# The types of columns, by the letters of the array module; on disk they are little-endian.
_i64, _u64, _i32, _u32, _u16, _u8 = (partial(array, letter) for letter in "qQiIHB")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvents:
    """PyTorch's memory history, in order."""

    time_us: array[int] = field(default_factory=_i64)
    action: array[int] = field(default_factory=_u8)
    """Index into ACTIONS."""
    address: array[int] = field(default_factory=_u64)
    """Of an oom: the bytes that were free on the card."""
    size: array[int] = field(default_factory=_i64)
    """As asked for: blocks are larger (foretell.replay)."""
    stream: array[int] = field(default_factory=_u64)
    device: array[int] = field(default_factory=_u16)
    stack: array[int] = field(default_factory=_i32)
    """Index into Trace.stacks; -1 for none."""

    def of_device(self, device: int) -> Iterator[tuple[int, str, int, int]]:
        """time_us, action, address, size."""
        rows = zip(self.time_us, self.action, self.address, self.size, strict=True)
        mask = (d == device for d in self.device)
        return ((time_us, ACTIONS[action], address, size) for time_us, action, address, size in compress(rows, mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEvents:
    """Memory at the driver's level: cudaMalloc and its relatives."""

    time_us: array[int] = field(default_factory=_i64)
    is_free: array[int] = field(default_factory=_u8)
    name: array[int] = field(default_factory=_u32)
    address: array[int] = field(default_factory=_u64)
    size: array[int] = field(default_factory=_i64)
    device: array[int] = field(default_factory=_i64)
    in_use: array[int] = field(default_factory=_i64)
    """Bytes in use on the device after it, without context and libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What lies where: tensors whose part in the training is known."""

    event: array[int] = field(default_factory=_i64)
    """It lay there before this one of the memory events, of all devices."""
    device: array[int] = field(default_factory=_u16)
    address: array[int] = field(default_factory=_u64)
    """Perhaps in the middle of a block."""
    category: array[int] = field(default_factory=_u8)
    """Index into records.CATEGORIES."""
    name: array[int] = field(default_factory=_i32)
    """Index into Trace.owners; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """From that memory event on, until the next span begins."""

    event: array[int] = field(default_factory=_i64)
    phase: array[int] = field(default_factory=_u8)
    """Index into PHASES."""
    step: array[int] = field(default_factory=_i32)
    where: array[int] = field(default_factory=_i32)
    """Index into Trace.owners: the line that began it; -1: not known."""


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
class LibraryCalls:
    time_us: array[int] = field(default_factory=_i64)
    name: array[int] = field(default_factory=_u32)
    workspace_bytes: array[int] = field(default_factory=_i64)
    argument_1: array[int] = field(default_factory=_i64)
    argument_2: array[int] = field(default_factory=_i64)
    argument_3: array[int] = field(default_factory=_i64)
    argument_4: array[int] = field(default_factory=_i64)
    argument_5: array[int] = field(default_factory=_i64)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """What of PYTORCH_CUDA_ALLOC_CONF changes blocks and segments."""

    is_native: bool = True
    """PyTorch's own allocator, not cudaMallocAsync."""
    is_expandable: bool = False
    max_split_bytes: int = sys.maxsize
    power2_divisions: tuple[int, ...] = ()
    """Into how many parts a power of two is divided to round sizes up: below 2 MiB, below 4 MiB, and so on."""
    garbage_collection_threshold: float = 0.0
    """Of the memory a process may take; acts only where that is limited."""
    oversize_rounding_bytes: int = 20 * MIB
    """A free block that is never split may be so much larger than what is asked for."""
    large_segment_bytes: int = 20 * MIB
    prefers_older_segments: bool = True
    """Of free blocks of one size the one in the older segment is taken, else the one with the lowest address."""
    is_private_like_capture: bool = False
    """While a private pool is in use nothing is given back: no events are looked at, no cache is released."""

    @classmethod
    def of_environment(
        cls, torch_version: str | None = None, variables: Sequence[tuple[str, str]] = ()
    ) -> AllocatorSettings:
        """A child inherits ours, but for `variables`; PYTORCH_ALLOC_CONF is the new name of it, from 2.9."""
        environ = {**os.environ, **dict(variables)}
        text = environ.get("PYTORCH_ALLOC_CONF") or environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        return cls.parse(text, torch_version)

    @classmethod
    def parse(cls, text: str, torch_version: str | None = None) -> AllocatorSettings:
        """The variable's own syntax: `max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]`."""
        settings = {name.strip(): value.strip() for name, value in re.findall(r"(\w+)\s*:\s*(\[[^]]*\]|[^,]+)", text)}
        max_split = settings.get("max_split_size_mb", "")
        return cls(
            is_native=settings.get("backend", "native") == "native",
            is_expandable=settings.get("expandable_segments", "").lower() == "true",
            max_split_bytes=int(max_split) * MIB if max_split.isdigit() else sys.maxsize,
            power2_divisions=_divisions(settings.get("roundup_power2_divisions", ""), torch_version),
            garbage_collection_threshold=float(settings.get("garbage_collection_threshold", 0.0)),
            oversize_rounding_bytes=int(settings.get("max_non_split_rounding_mb", 20)) * MIB,
            large_segment_bytes=int(settings.get("large_segment_size_mb", 20)) * MIB,
            prefers_older_segments=_version(torch_version) >= _OLDER_SEGMENTS_FIRST,
            is_private_like_capture=_version(torch_version) < _PRIVATE_IS_NO_CAPTURE,
        )

    def round_size(self, size: int) -> int:
        """DeviceCachingAllocator::round_size."""
        if size < 512:
            return 512
        if self.power2_divisions:
            parts = self.power2_divisions[min(max(size.bit_length() - 21, 0), _NUM_DIVISIONS - 1)]
            if parts > 1 and size > 512 * parts:
                return _round_up_to_part_of_power_of_two(size, parts)
        return (size + 511) // 512 * 512


_NUM_DIVISIONS = 16
# Until then `>` overwrites the last entry before it, too (seen with 2.6 and 2.15; the version in between is a guess).
_LAST_ENTRY_STAYS = (2, 9)
# Until then a private pool in use is taken for the capture of a CUDA graph (seen and guessed in the same way).
_PRIVATE_IS_NO_CAPTURE = (2, 9)
_OLDER_SEGMENTS_FIRST = (2, 9)
_NEWEST = (99,)


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2])) if text else _NEWEST


def _divisions(value: str, torch_version: str | None) -> tuple[int, ...]:
    """One number for all, or entries for single sizes: below the first its own holds, between two nothing does."""
    if value.isdigit():
        return (int(value),) * _NUM_DIVISIONS
    divisions, last = [0] * _NUM_DIVISIONS, -1
    for entry, parts in re.findall(r"(\d+|>)\s*:\s*(\d+)", value):
        if entry == ">":
            begin = last + 1 if _version(torch_version) >= _LAST_ENTRY_STAYS else max(last, 0)
            divisions[begin:] = [int(parts)] * (_NUM_DIVISIONS - begin)
            continue
        index = min(max(int(entry).bit_length() - 1, 0), _NUM_DIVISIONS - 1)
        if last < 0:
            divisions[:index] = [int(parts)] * index
        divisions[index] = int(parts)
        last = index
    return tuple(divisions) if last >= 0 or any(divisions) else ()


def _round_up_to_part_of_power_of_two(size: int, parts: int) -> int:
    """roundup_power2_next_division: between 1024 and 2048 with 4 parts: 1280, 1536, 1792, 2048."""
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    part = floor // parts
    return floor * 2 if part == 0 else (size + part - 1) // part * part


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """PyTorch's counters of one device at one moment."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    """Since the process began."""
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark:
    """The optimizer has stepped."""

    index: int
    time_us: int
    devices: tuple[DeviceMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMark:
    time_us: int
    oom: OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptException:
    """Left the script uncaught."""

    type: str
    message: str
    where: str | None
    is_oom: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Something that happened `count` times."""

    what: str
    where: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """A variable that holds more after each step."""

    name: str
    what: str
    """`a list of tensors that grows`"""
    where: str
    """The line that adds to it, else its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFunction:
    """A function of CUDA's that was called and that the virtual GPU does not have."""

    name: str
    operator: str | None
    """Of PyTorch, or the step of its backward pass; None where no Python code was on the way."""
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    what: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All that one run told."""

    command: tuple[str, ...]
    gpu: Gpu
    context_bytes: int
    is_context_given: bool
    libraries: LibraryBytes
    exit_status: int
    is_timed_out: bool
    seconds: dict[str, float]
    python_version: str | None
    torch_version: str | None
    cuda_version: str | None
    cudnn_version: int | None
    arch_list: tuple[str, ...]
    pid: int | None
    """The process that held the most; None when no Python process was seen."""
    num_gpu_processes: int
    allocator: AllocatorSettings
    phases_seen: tuple[Phase, ...]
    steps: tuple[StepMark, ...]
    final: tuple[DeviceMemory, ...]
    """PyTorch's counters when the process ended, or when it was last heard of."""
    is_ended: bool
    """The process wrote its last line: it was not killed."""
    ooms: tuple[OomMark, ...]
    exception: ScriptException | None
    unknown_reads: tuple[Counted, ...]
    unimplemented: tuple[MissingFunction, ...]
    unsupported: tuple[Unsupported, ...]
    redirected_writes: tuple[str, ...]
    not_sent: tuple[str, ...]
    ended_early: tuple[str, ...]
    caveats: tuple[str, ...]
    names: tuple[str, ...]
    """Kernels and functions, by the number the tables use."""
    frames: tuple[tuple[str, int, str], ...]
    """file, line, function."""
    stacks: tuple[tuple[int, ...], ...]
    """Numbers of frames, innermost first."""
    memory: MemoryEvents
    driver: DriverEvents
    kernels: KernelLaunches
    library: LibraryCalls
    used_by_others_bytes: int = 0
    """Of the card, by whoever else is on it."""
    labels: Labels = field(default_factory=Labels)
    spans: Spans = field(default_factory=Spans)
    owners: tuple[str, ...] = ()
    """Names and places, by the number labels and spans use."""
    keepers: tuple[Keeper, ...] = ()
    engine: Engine = "virtual"
    """How it was made: files from before there were two do not say."""

    def library_functions(self) -> set[str]:
        """The functions of NVIDIA's libraries that were called."""
        return {self.names[number] for number in set(self.library.name) if number < len(self.names)}
