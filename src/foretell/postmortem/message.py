"""Finds out-of-memory messages in anything people paste: a log, a traceback, a notebook's cell, a broken line.

The wordings are those of c10/cuda/CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp from torch 1.0 to 2.15, and
of the libraries that run out of memory without saying how much there was. Terminals break lines anywhere, so patterns
are matched against the text without its white space.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Literal

from foretell.units import GIB, KIB, MIB, TIB

Source = Literal[
    "allocator", "cuda", "cublas", "cudnn", "solver", "nccl", "bitsandbytes", "triton", "hidden", "address_space",
    "vllm", "host", "shared_memory", "other_framework",
]  # fmt: skip
"""Who reports it. `allocator`: PyTorch's own, with numbers; `hidden`: an assertion of PyTorch that hides the message;
`host`: the memory of the machine, not of the GPU; `shared_memory`: that of a GPU's multiprocessors."""
Wording = Literal["cached", "reserved", "capacity", "async", "mps", "none"]
"""Of the allocator's message. cached: torch 1.0 to 1.3; reserved: 1.4 to 2.0; capacity: 2.1 and newer; async: the
backend cudaMallocAsync; mps: Apple GPUs; none: no numbers but that of the request, if any."""

_FRAME_LINES = 150
"""How far above its message a traceback is looked for."""
_LONGEST = 3_000
"""Characters of a message, without white space; several dozen processes fit."""

_MOST_MESSAGES = 1_000
"""Of each kind in one text; further ones are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line of a traceback."""

    path: str
    line: int | None
    function: str | None

    @property
    def is_library(self) -> bool:
        return re.search(r"(site|dist)-packages|[/\\]lib[/\\]python", self.path) is not None

    @property
    def place(self) -> str:
        """`model.py:12`: folders are nobody's business."""
        name = re.split(r"[/\\]", self.path)[-1]
        return name if self.line is None else f"{name}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMessage:
    """What an out-of-memory message says. Sizes are rounded as PyTorch prints them; None: it does not say."""

    source: Source
    backend: str = "CUDA"
    """CUDA, HIP, XPU, NPU, MPS, ..."""
    wording: Wording = "none"
    requested_bytes: int | None = None
    """What the allocator asked the driver for: rounded up, at least 2 MiB (20 MiB for requests of 1 to 10 MiB)."""
    gpu: int | None = None
    """Its number, as the process counts."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    own_bytes: int | None = None
    """Of this process, with what is not PyTorch's."""
    processes: tuple[tuple[int, int], ...] = ()
    """Process number and bytes of the processes that it lists, except this one."""
    allocated_bytes: int | None = None
    unallocated_bytes: int | None = None
    """Reserved by PyTorch but not allocated."""
    private_bytes: int | None = None
    """Of the allocated bytes: in private pools, such as those of CUDA graphs."""
    limit_bytes: int | None = None
    """Set by set_per_process_memory_fraction, or by the system (MPS)."""
    other_bytes: int | None = None
    """MPS: of other allocations."""
    is_expandable: bool = False
    """expandable_segments is on."""
    is_preemptive: bool = False
    """Refused before the driver was asked, because of the limit."""
    is_exabyte: bool = False
    """The request is larger than any memory."""
    has_no_process_sizes: bool = False
    """It lists processes without a size, as under WSL and Windows."""
    rank: int | None = None
    line: int = 1
    """Its first line in the text."""
    frames: tuple[Frame, ...] = ()
    """The traceback above it, outermost first."""

    @property
    def reserved_bytes(self) -> int | None:
        """Allocated or not."""
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes


def find_messages(text: str) -> list[OomMessage]:
    """All that are different, in the order of the text; those with numbers first."""
    lines = _lines(text)
    unprefixed = (line[_prefix_length(before, line) :] for before, line in zip(["", *lines], lines, strict=False))
    tight = ["".join(line.split()) for line in unprefixed]
    begins = list(accumulate((len(line) for line in tight), initial=0))
    whole = "".join(tight)
    found: dict[object, OomMessage] = {}
    previous = 0
    for begin, message in sorted(_all_in(whole), key=lambda each: each[0]):
        number = bisect_right(begins, begin, hi=len(lines)) - 1
        rank = re.search(r"\[rank(\d{1,6})\]", lines[number][:_LONGEST_PREFIX])
        placed = _placed(message, number, _frames(lines[max(previous, number - _FRAME_LINES) : number + 1]), rank)
        found.setdefault(_identity(placed), placed)
        previous = number
    return sorted(found.values(), key=lambda each: each.wording == "none")


def _identity(message: OomMessage) -> object:
    """Logs repeat a message; without numbers, repetitions cannot be told from further errors."""
    if message.wording == "none":
        return message.source
    sizes = (message.requested_bytes, message.total_bytes, message.free_bytes, message.allocated_bytes)
    return (message.gpu, message.rank, *sizes, message.unallocated_bytes)


def _placed(message: OomMessage, number: int, frames: tuple[Frame, ...], rank: re.Match[str] | None) -> OomMessage:
    return replace(message, line=number + 1, frames=frames, rank=None if rank is None else int(rank[1]))


# --- the text without what terminals, loggers and mail programs add ---------------------------------------------------

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|\x1b[@-_]?")
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_BORDERS = re.compile(r"[\u2500-\u259f]|^[ \t]*\|(?=[ \t])|(?<=[ \t])\|[ \t]*$", re.MULTILINE)
_QUOTES = re.compile(r"^[ \t]*(?:>[ \t]?)+", re.MULTILINE)
_ESCAPED_BREAK = re.compile(r"\\n(?=\s|[A-Z]|torch|$)")
_END_OF_PREFIX = re.compile(r"[:\]|)>][ \t]+")
_LONGEST_PREFIX = 100


def _lines(text: str) -> list[str]:
    text = _INVISIBLE.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
    text = _ESCAPED_BREAK.sub("\n", text).replace('\\"', '"')
    return _QUOTES.sub("", _BORDERS.sub(" ", text)).split("\n")


def _prefix_length(before: str, line: str) -> int:
    """Of `worker 3: `, which a logger puts before each line, also where it broke one."""
    ends = (match.end() for match in _END_OF_PREFIX.finditer(line[:_LONGEST_PREFIX]))
    return max((end for end in ends if before.startswith(line[:end])), default=0)


# --- the allocator's messages -----------------------------------------------------------------------------------------

_UNITS = {"bytes": 1, "KB": KIB, "MB": MIB, "GB": GIB, "TB": TIB}
_UNKNOWN_BYTES = 1 << 62
"""What NVML does not know is 2^64 - 1 bytes."""
_SIZE = r"(\d{1,20}(?:\.\d{1,9})?)(bytes|[KMGT]i?B)"
_BEGINS = re.compile(
    r"(?P<mps>MPSbackendoutofmemory)(?:\([^)]{0,300}\)\.?Triedtoallocate)?"
    r"|(?P<backend>CUDA|HIP|XPU|NPU|MLU|MUSA|HPU)outofmemory(?:\.?Triedtoallocate)?"
    rf"|Triedtoallocate(?={_SIZE}(?:\.|\()[GN]PU)"
    r"|(?P<driver>OutOfMemoryError:Allocationondevice|Allocationondevice(?=\d{1,4}wouldexceed))",
    re.IGNORECASE,
)


def _all_in(whole: str) -> Iterator[tuple[int, OomMessage]]:
    anchors = [*islice(_BEGINS.finditer(whole), _MOST_MESSAGES)]
    ends = (*(anchor.start() for anchor in anchors[1:]), len(whole))
    for anchor, end in zip(anchors, ends, strict=False):
        yield anchor.start(), _read(anchor, whole[anchor.start() : min(end, anchor.start() + _LONGEST)])
    for source, pattern in _OTHERS:
        for match in islice(pattern.finditer(whole), _MOST_MESSAGES):
            yield match.start(), OomMessage(source=source, requested_bytes=_whole_bytes(match))


def _read(anchor: re.Match[str], text: str) -> OomMessage:
    if anchor["mps"]:
        return _read_mps(text)
    if anchor["driver"]:
        return _read_async(text)
    total = _first(text, rf"totalcapaci?tyof{_SIZE}", rf"{_SIZE}totalcapacity")
    allocated = _first(text, rf"Oftheallocatedmemory{_SIZE}isallocated", rf"{_SIZE}alreadyallocated")
    reserved = _first(text, rf"{_SIZE}reservedintotalbyPyTorch")
    cached = _first(text, rf"{_SIZE}cached\)")
    unallocated = _first(text, rf"and{_SIZE}isreservedbyPyTorch")
    if unallocated is None:
        unallocated = cached if reserved is None or allocated is None else max(0, reserved - allocated)
    listed = re.findall(rf"Process(\d{{1,10}})has{_SIZE}memoryinuse", text, re.IGNORECASE)
    processes = [(int(pid), size) for pid, *words in listed if (size := _bytes(*words)) is not None]
    wording: Wording = "cached" if cached is not None else "reserved"
    if re.search("totalcapaci?tyof", text, re.IGNORECASE):
        wording = "capacity"
    gpu = re.search(r"[NG]PU(\d{1,4})", text)
    return OomMessage(
        source="allocator",
        backend=(anchor["backend"] or "CUDA").upper(),
        wording="none" if total is None else wording,
        requested_bytes=_first(text, rf"Triedtoallocate{_SIZE}", rf"Requestedsize:{_SIZE}"),
        gpu=None if gpu is None else int(gpu[1]),
        total_bytes=total,
        free_bytes=_first(text, rf"ofwhich{_SIZE}isfree", rf"{_SIZE}free"),
        own_bytes=_first(text, rf"thisprocesshas{_SIZE}memoryinuse"),
        processes=tuple(processes),
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        private_bytes=_first(text, rf"with{_SIZE}allocatedinprivatepools"),
        limit_bytes=_first(text, rf"{_SIZE}allowed;"),
        is_expandable="expandable_segmentsisenabled" in text or "expandable-segmentreserve" in text,
        is_preemptive="preemptivelyrejected" in text,
        is_exabyte="morethan1EBmemory" in text,
        has_no_process_sizes=len(processes) < len(listed) or "has17179869184.00GiB" in text,
    )


def _read_async(text: str) -> OomMessage:
    """Of the backend cudaMallocAsync."""
    total = _first(text, rf"Devicelimit:{_SIZE}")
    gpu = re.match(r"Allocationondevice(\d{1,4})", text, re.IGNORECASE)
    return OomMessage(
        source="allocator",
        wording="none" if total is None else "async",
        requested_bytes=_first(text, rf"Requested:{_SIZE}"),
        gpu=None if gpu is None else int(gpu[1]),
        total_bytes=total,
        free_bytes=_first(text, rf"Free\(accordingtoCUDA\):{_SIZE}"),
        allocated_bytes=_first(text, rf"Currentlyallocated:{_SIZE}"),
        limit_bytes=_first(text, rf"memoryfraction\):{_SIZE}"),
    )


def _read_mps(text: str) -> OomMessage:
    limit = _first(text, rf"maxallowed:{_SIZE}")
    return OomMessage(
        source="allocator",
        backend="MPS",
        wording="none" if limit is None else "mps",
        requested_bytes=_first(text, rf"Triedtoallocate{_SIZE}"),
        allocated_bytes=_first(text, rf"MPSallocated:{_SIZE}"),
        other_bytes=_first(text, rf"otherallocations:{_SIZE}"),
        limit_bytes=limit,
    )


def _first(text: str, *patterns: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, text, re.IGNORECASE)
        if match is not None:
            return _bytes(match[1], match[2])
    return None


def _bytes(number: str, unit: str) -> int | None:
    size = float(number) * _UNITS["bytes" if unit.lower() == "bytes" else f"{unit[0].upper()}B"]
    return round(size) if size < _UNKNOWN_BYTES else None


# --- libraries, which say no more than that memory ran out ------------------------------------------------------------

_PATTERNS: dict[Source, str] = {
    "triton": r"TritonError\[CUDA\]:outofmemory",
    "cuda": r"(?:CUDA|HIP)(?:driver|runtime)?error(?:\(\d+\))?:outofmemory|cudaErrorMemoryAllocation"
    r"|THCudaCheckFAIL[^=]{0,300}line=\d+error=2|CUDA_ERROR_OUT_OF_MEMORY",
    "cublas": r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED",
    "cudnn": r"CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_INITIALIZED|UnabletofindavalidcuDNNalgorithm"
    r"|(?:GET|FIND)wasunabletofindanengine",
    "solver": r"CUSOLVER_STATUS_ALLOC_FAILED|CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)"
    r"|CUFFT_ALLOC_FAILED",
    "nccl": r"Cudafailure\d{0,3}'outofmemory'|FailedtoCUDA(?:host)?(?:calloc|malloc)(?:async)?(?P<bytes>\d{1,19})",
    "bitsandbytes": r"Erroroutofmemoryatline\d+infile",
    "hidden": r"NVML_SUCCESS==\w+(?:\([^)]{0,200}\))?INTERNALASSERTFAILEDat\S{0,200}CUDACachingAllocator",
    "address_space": r"\[ExpandableSegmentVA\]Failedtoreserve",
    "vllm": r"Noavailablememoryforthecacheblocks|onstartupislessthandesiredGPUmemoryutilization",
    "host": r"DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory):youtriedtoallocate(?P<bytes>\d{1,19})"
    r"|DataLoaderworker\(pid\S{0,20}\)iskilledbysignal",
    "shared_memory": r"outofresource:sharedmemory",
    "other_framework": r"RESOURCE_EXHAUSTED|OOMwhenallocatingtensorwithshape"
    r"|cupy\S{0,40}OutOfMemoryError:Outofmemoryallocating",
}
_OTHERS = [(source, re.compile(pattern, re.IGNORECASE)) for source, pattern in _PATTERNS.items()]


def _whole_bytes(match: re.Match[str]) -> int | None:
    digits = match.groupdict().get("bytes")
    return int(digits) if digits and int(digits) < _UNKNOWN_BYTES else None


# --- tracebacks -------------------------------------------------------------------------------------------------------

_FRAMES = (
    re.compile(r'File "(?P<path>[^"\n]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>[^\s(]{1,200}))?'),
    re.compile(r"(?P<path>[^\s:\"'(]{1,500}\.py):(?P<line>\d{1,9}),? in (?P<function>[^\s(]{1,200})"),
    re.compile(r"^(?P<path>[^\s:\"'(]{1,500}\.py) in (?P<function>[^\s(]{1,200})"),
    re.compile(r"^(?P<path>Cell In ?\[\d{1,6}\]), line (?P<line>\d{1,9})"),
)


def _frames(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Of the last traceback in these lines."""
    frames: list[Frame] = []
    for line in lines:
        line = line[:2_000]
        if "Traceback (most recent call last)" in line:
            frames.clear()
            continue
        match = next(filter(None, (pattern.search(line) for pattern in _FRAMES)), None)
        if match is not None:
            named = match.groupdict()
            number = named.get("line")
            frames.append(
                Frame(path=named["path"], line=None if number is None else int(number), function=named.get("function"))
            )
    return tuple(frames)
