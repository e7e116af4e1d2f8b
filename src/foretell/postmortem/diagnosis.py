"""Why memory ran out and what helps, as far as the message alone tells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from foretell.postmortem.balance import Balance
from foretell.postmortem.message import Frame, OomMessage, Source
from foretell.units import GIB, MIB, format_bytes

Cause = Literal[
    "fragmentation", "neighbour", "libraries", "cuda_graphs", "large_request", "too_large", "limit", "small_card",
    "refused", "longer_batch", "leak", "autotuning", "no_numbers", "not_gpu_memory",
]  # fmt: skip
"""longer_batch, leak and autotuning are only known after the script was run."""
TITLES: dict[Cause, str] = {
    "fragmentation": "fragmentation of PyTorch's memory",
    "neighbour": "other processes on the same GPU",
    "libraries": "memory of this process outside PyTorch",
    "cuda_graphs": "memory kept for CUDA graphs",
    "large_request": "one very large request",
    "too_large": "the job is too large for this GPU",
    "limit": "a limit below the memory of the GPU",
    "small_card": "the GPU is smaller than expected",
    "refused": "refused although enough was free",
    "longer_batch": "a larger batch than those before",
    "leak": "memory that grows with every step",
    "autotuning": "workspaces of cudnn.benchmark",
    "no_numbers": "out of GPU memory, but the message has too few numbers",
    "not_gpu_memory": "not the memory of the GPU",
}

_FRAGMENTED = 0.05
"""Of PyTorch's memory; less is normal, and using it would not help for long."""
_SHARED = 0.03
"""Of the card; a smaller neighbour is a desktop, and not why a job fails."""
_OUTSIDE_BYTES = GIB
"""More than CUDA context and NVIDIA's libraries take together: 0.2 to 0.8 GiB."""
_LARGE = 0.25
"""Of the card: a request that no batch size in small steps leads to."""
_SMALLER = 0.9
_CONTEXT_BYTES = range(100 * MIB, 1200 * MIB)
"""What a process takes that only has a CUDA context."""

EMPTY_CACHE = (
    "torch.cuda.empty_cache(): PyTorch had already given its cache back to the driver when it raised the error; what "
    "it "
    "still held lies between tensors in use"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    cause: Cause
    why: str
    helps: str
    """The one setting, or the one thing to do."""
    because: str
    does_not_help: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Other things worth knowing about this message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the rest of the pasted text says, and the person who pasted it."""

    is_windows: bool = False
    mig: str | None = None
    """A MIG profile that is named: `2g.20gb`."""
    expected: str | None = None
    """The card that the text or `--gpu` names."""
    expected_bytes: int | None = None
    ranks_on_this_gpu: int = 1


def diagnose(message: OomMessage, balance: Balance | None, around: Surroundings) -> Diagnosis:
    if message.source != "allocator":
        return _of_library(message.source)
    if message.is_exabyte:
        return Diagnosis(
            cause="large_request",
            why="A size of more than 2^60 bytes was requested, which is a mistake in a computation and not a need.",
            helps="look at the line that allocates: a negative or uninitialized length, or a size that overflowed",
            because="no GPU has that much. After a communication error, it is a consequence: see the first error.",
            does_not_help=("a smaller batch, a larger GPU, allocator settings",),
        )
    if message.backend == "MPS":
        return _of_mps(message)
    if _is_over_limit(message):
        return _limit(message)
    if balance is None or message.requested_bytes is None:
        return _without_numbers(message)
    found = _of_balance(message, balance, around)
    return _with_notes(found, message, balance, around)


# --- causes -----------------------------------------------------------------------------------------------------------


def _of_balance(message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    requested, free, total = message.requested_bytes or 0, balance.free_bytes, balance.total_bytes
    if around.expected_bytes is not None and total < _SMALLER * around.expected_bytes:
        return _small_card(balance, around)
    if requested > total:
        return _large_request(message, balance)
    if free >= requested + max(int(0.02 * total), 64 * MIB):
        return _refused(message, balance, around)
    reserved = balance.allocated_bytes + balance.unallocated_bytes
    would_do: dict[Cause, int] = {}
    if balance.unallocated_bytes >= _FRAGMENTED * reserved:
        would_do["fragmentation"] = balance.unallocated_bytes
    if balance.neighbour_bytes >= _SHARED * total:
        would_do["neighbour"] = balance.neighbour_bytes
    if balance.outside_bytes > _OUTSIDE_BYTES + _FRAGMENTED * total:
        would_do["libraries" if balance.is_outside_known else "neighbour"] = balance.outside_bytes - _OUTSIDE_BYTES
    if message.private_bytes and message.private_bytes >= _FRAGMENTED * total:
        would_do["cuda_graphs"] = message.private_bytes
    enough = {cause: size for cause, size in would_do.items() if free + size >= requested - balance.rounding_bytes}
    if not enough:
        is_large = requested >= _LARGE * total
        return _large_request(message, balance) if is_large else _too_large(message, balance)
    causes = sorted(enough, key=enough.__getitem__, reverse=True)
    found = {
        "fragmentation": _fragmentation,
        "neighbour": _neighbour,
        "libraries": _libraries,
        "cuda_graphs": _cuda_graphs,
    }[causes[0]](message, balance, around)
    also = (f"Enough would have been, too: {TITLES[each]}, {format_bytes(enough[each])}." for each in causes[1:])
    return replace(found, also=tuple(also))


def _fragmentation(message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    gaps, free = format_bytes(balance.unallocated_bytes), format_bytes(balance.free_bytes)
    helps, because = allocator_setting(message, around)
    return Diagnosis(
        cause="fragmentation",
        why=f"PyTorch held {gaps} that no tensor used, and {free} more was free: together enough for the "
        f"{format_bytes(message.requested_bytes or 0)} requested, but not in one piece.",
        helps=helps,
        because=because,
        does_not_help=(EMPTY_CACHE,),
    )


def allocator_setting(message: OomMessage, around: Surroundings) -> tuple[str, str]:
    """What to set against fragmentation, and why."""
    name = "PYTORCH_HIP_ALLOC_CONF" if message.backend == "HIP" else "PYTORCH_CUDA_ALLOC_CONF"
    if message.is_expandable:
        return (
            "fewer different sizes: pad sequences or images to a few fixed shapes",
            "expandable_segments is already on; what remains are gaps between tensors of different sizes.",
        )
    if around.is_windows:
        return (
            f"{name}=backend:cudaMallocAsync",
            "the driver's allocator has no such gaps. expandable_segments, which the message names, does not work "
            "under "
            "Windows.",
        )
    if message.wording == "capacity":
        return (
            f"{name}=expandable_segments:True",
            "segments then grow instead of being added, so that tensors of other sizes can use the gaps. It also has "
            "to be enough for what comes after this request, which the message cannot tell. Windows does not have it; "
            "there, try "
            "backend:cudaMallocAsync.",
        )
    return (
        f"torch 2.1 or newer, with {name}=expandable_segments:True",
        "this torch does not have it yet. Until then, max_split_size_mb:128 in the same variable (from torch 1.10 on) "
        "keeps "
        "large blocks whole.",
    )


def _neighbour(message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    others = [(pid, size) for pid, size in message.processes if pid != balance.own_process]
    size = balance.neighbour_bytes or balance.outside_bytes
    if others:
        shown = ", ".join(f"{pid} ({format_bytes(each)})" for pid, each in sorted(others, key=lambda row: -row[1])[:5])
        who = f"process {shown}" if len(others) == 1 else f"processes {shown}" + ", ..." * (len(others) > 5)
    else:
        who = "processes that the message does not list"
    why = (
        f"Other processes held {format_bytes(size)} of the {format_bytes(balance.total_bytes)}: {who}. Without them "
        "the "
        f"request of {format_bytes(message.requested_bytes or 0)} would have been met."
    )
    if not others:
        why = (
            f"{format_bytes(size)} was used outside PyTorch, more than CUDA context and libraries take: another "
            "process "
            "uses this GPU, perhaps an earlier run or a notebook that was not closed."
        )
    is_own_ranks = len(others) > 1 and all(each in _CONTEXT_BYTES for _, each in others)
    if is_own_ranks or around.ranks_on_this_gpu > 1:
        return Diagnosis(
            cause="neighbour",
            why=why + " Several small ones of one size look like CUDA contexts of this job's own processes.",
            helps="torch.cuda.set_device(local_rank) first in each process, and map_location='cpu' for torch.load",
            because="each process otherwise creates a context, and loads checkpoints, on GPU 0 as well.",
            does_not_help=("expandable_segments: the memory is not PyTorch's",),
        )
    return Diagnosis(
        cause="neighbour",
        why=why,
        helps="stop the other processes (nvidia-smi lists them), or choose another GPU with CUDA_VISIBLE_DEVICES",
        because="memory of other processes cannot be used by this one, whatever its settings.",
        does_not_help=(
            "expandable_segments and torch.cuda.empty_cache(): they act on the memory of this process alone",
        ),
    )


def _libraries(message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    return Diagnosis(
        cause="libraries",
        why=f"This process held {format_bytes(balance.outside_bytes)} that PyTorch knows nothing of. A CUDA context "
        "and "
        "NVIDIA's libraries take 0.2 to 0.8 GiB; the rest was allocated by something else in this process.",
        helps="find the other user of the GPU in this process: JAX (XLA_PYTHON_CLIENT_PREALLOCATE=false), TensorFlow "
        "(set_memory_growth), ONNX Runtime (gpu_mem_limit), a CUDA extension, many NCCL communicators",
        because="PyTorch can neither use nor release that memory.",
        does_not_help=(
            "expandable_segments and torch.cuda.empty_cache(): they act on PyTorch's memory alone",
            "stopping other processes: this one holds the memory",
        ),
    )


def _cuda_graphs(message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    return Diagnosis(
        cause="cuda_graphs",
        why=f"{format_bytes(message.private_bytes or 0)} lies in private pools, which only the CUDA graphs that own "
        "them can use.",
        helps='torch.compile without mode="reduce-overhead" or "max-autotune", fewer captured shapes, or one pool for '
        "all graphs (torch.cuda.graph(..., pool=...))",
        because="each pool keeps the peak of its graph for as long as the graph lives.",
        does_not_help=(EMPTY_CACHE, "expandable_segments: a private pool stays private"),
    )


def _limit(message: OomMessage) -> Diagnosis:
    limit, total = message.limit_bytes, message.total_bytes
    share = f", {limit / total:.1%} of the GPU" if limit and total else ""
    shown = f"{format_bytes(limit)}{share}" if limit else "a part of the GPU"
    return Diagnosis(
        cause="limit",
        why=f"PyTorch may use {shown}: set_per_process_memory_fraction, or per_process_memory_fraction in the "
        "allocator's "
        "settings, was called by the script or a framework.",
        helps="raise or remove that limit",
        because="the request is above it, however much of the GPU is free.",
        does_not_help=("stopping other processes", "a larger GPU, unless the fraction stays the same"),
    )


def _refused(message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    free, requested = format_bytes(balance.free_bytes), format_bytes(message.requested_bytes or 0)
    is_windows = around.is_windows or (message.backend == "CUDA" and _is_whole(balance.total_bytes))
    if is_windows:
        helps, because = (
            "a larger page file (System > Advanced > Performance > Virtual memory), if this is Windows",
            "Windows backs GPU memory with RAM and page file, and refuses more than they hold.",
        )
    else:
        helps, because = (
            "look for a quota: a vGPU or a GPU-sharing plugin of the container (HAMi, MPS limits), ulimit -v, or, with "
            "very many allocations, vm.max_map_count",
            "with such a quota the driver refuses memory that it reports as free.",
        )
    return Diagnosis(
        cause="refused",
        why=f"{free} was free when the message was written, more than the {requested} requested. Either the limit is "
        "not "
        "the memory of the GPU, or another thread or process freed memory in between.",
        helps=helps,
        because=because,
        does_not_help=("a smaller model: the GPU had room", EMPTY_CACHE),
    )


def _is_whole(total_bytes: int) -> bool:
    """Windows reports 8.00 GiB for a card of 8 GB, Linux less: 7.79 GiB."""
    return abs(total_bytes - round(total_bytes / GIB) * GIB) <= 0.011 * GIB


def _small_card(balance: Balance, around: Surroundings) -> Diagnosis:
    total, expected = format_bytes(balance.total_bytes), format_bytes(around.expected_bytes or 0)
    reason = "CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER=PCI_BUS_ID, to choose the GPU that is meant"
    because = "CUDA numbers the fastest GPU first, nvidia-smi by slot; the job ran on another one."
    if around.mig is not None:
        reason, because = (
            "a larger MIG slice, or MIG off",
            f"the job ran in a slice ({around.mig}), not on the whole GPU.",
        )
    return Diagnosis(
        cause="small_card",
        why=f"The GPU of the message has {total}, but {around.expected} has {expected}.",
        helps=reason,
        because=because,
        does_not_help=("allocator settings",),
    )


def _large_request(message: OomMessage, balance: Balance) -> Diagnosis:
    requested = message.requested_bytes or 0
    share = requested / balance.total_bytes
    doing = _doing(message.frames)
    helps, because = (
        "a shorter sequence, a smaller image or a smaller batch in the line that allocates",
        "this one tensor is the problem, not the sum of the others.",
    )
    if requested > balance.total_bytes:
        because = "it is larger than the GPU. If the GPU should have more, the driver or a slice of it gives it less."
    if doing == "attention":
        helps, because = (
            "torch.nn.functional.scaled_dot_product_attention, or FlashAttention (attn_implementation='sdpa')",
            "written out, attention keeps a matrix of sequence x sequence for each head.",
        )
    elif doing == "loss":
        helps, because = (
            "a fused or chunked cross entropy (Liger, torchtune), or fewer tokens in a batch",
            "the logits are tokens x vocabulary, and the loss makes copies of them in float32.",
        )
    elif doing == "loading":
        helps, because = ("a smaller or quantized model, or several GPUs", "a single weight is this large.")
    return Diagnosis(
        cause="large_request",
        why=f"A single tensor of {format_bytes(requested)} was requested: {share:.0%} of the GPU. Usual reasons: "
        "attention "
        "scores, a batch padded to its longest sample, the logits of a large vocabulary, a decoder on a whole image.",
        helps=helps,
        because=because,
        does_not_help=(
            "expandable_segments: free and unallocated memory together are less than the request",
            EMPTY_CACHE,
        ),
    )


def _too_large(message: OomMessage, balance: Balance) -> Diagnosis:
    share = balance.allocated_bytes / balance.total_bytes
    doing = _doing(message.frames)
    helps, because = (
        "a smaller batch with gradient accumulation, or gradient checkpointing; without training, half precision or a "
        "smaller model",
        "activations grow with the batch; parameters, gradients and optimizer state do not.",
    )
    not_helping = [f"expandable_segments: only {format_bytes(balance.unallocated_bytes)} was not in use", EMPTY_CACHE]
    if message.wording == "async":
        not_helping = ["expandable_segments: it belongs to PyTorch's own allocator, and the driver's is in use"]
    if doing == "loading":
        helps, because = (
            "weights in bfloat16 or quantized, offloading, or several GPUs",
            "it ran out while the weights were being loaded.",
        )
        not_helping.insert(0, "a smaller batch: there was none yet")
    elif doing == "optimizer":
        helps, because = (
            "an optimizer with less state (8-bit Adam, Adafactor), or sharding of it (FSDP, ZeRO)",
            "it ran out in the optimizer's step: Adam creates its state, twice the size of the parameters, at the "
            "first one.",
        )
    elif doing == "attention":
        helps, because = (
            "torch.nn.functional.scaled_dot_product_attention, or FlashAttention (attn_implementation='sdpa')",
            "it ran out in attention, which keeps a matrix of sequence x sequence if it is written out.",
        )
    return Diagnosis(
        cause="too_large",
        why=f"PyTorch's tensors alone took {format_bytes(balance.allocated_bytes)}, {share:.0%} of the GPU, and "
        f"{format_bytes(message.requested_bytes or 0)} more was requested.",
        helps=helps,
        because=because,
        does_not_help=tuple(not_helping),
    )


# --- messages with fewer numbers --------------------------------------------------------------------------------------


def _is_over_limit(message: OomMessage) -> bool:
    if message.is_preemptive:
        return True
    limit, reserved = message.limit_bytes, message.reserved_bytes
    if limit is None or message.requested_bytes is None:
        return False
    used = reserved if reserved is not None else message.allocated_bytes or 0
    return used + message.requested_bytes > limit - limit // 100


def _of_mps(message: OomMessage) -> Diagnosis:
    sizes = [f"{format_bytes(message.allocated_bytes)} of PyTorch's" if message.allocated_bytes is not None else ""]
    sizes += [f"{format_bytes(message.other_bytes)} of others" if message.other_bytes is not None else ""]
    allowed = f" of the {format_bytes(message.limit_bytes)} allowed" if message.limit_bytes is not None else ""
    return Diagnosis(
        cause="limit",
        why=f"An Apple GPU shares the memory of the machine, and PyTorch stops at a watermark: "
        f"{' and '.join(filter(None, sizes)) or 'all'}{allowed} was taken.",
        helps="a smaller batch, image or model, and fewer open applications",
        because="memory of the machine is all there is.",
        does_not_help=(
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0, which the message names: it removes the limit, not the need; the "
            "machine "
            "then swaps",
            "PYTORCH_CUDA_ALLOC_CONF: it does not apply to MPS",
        ),
    )


def _without_numbers(message: OomMessage) -> Diagnosis:
    known = [f"{format_bytes(message.requested_bytes)} was requested"] if message.requested_bytes is not None else []
    known += [f"the GPU has {format_bytes(message.total_bytes)}"] if message.total_bytes is not None else []
    known += [f"{format_bytes(message.free_bytes)} was free"] if message.free_bytes is not None else []
    return Diagnosis(
        cause="no_numbers",
        why="PyTorch's allocator ran out of memory, but the message is cut off before its numbers"
        + (f": {', '.join(known)}." if known else "."),
        helps="paste the whole line, from `CUDA out of memory` to `reserved by PyTorch`",
        because="allocated, reserved and other processes are named there.",
        does_not_help=(EMPTY_CACHE,),
    )


_NO_NUMBERS: dict[Source, tuple[str, str, str]] = {
    "cuda": (
        "The CUDA driver refused memory to something other than PyTorch's allocator: the CUDA context itself, pinned "
        "host "
        "memory, a library, or an extension.",
        "look at nvidia-smi, and leave some memory free: a smaller batch, or "
        "torch.cuda.set_per_process_memory_fraction(0.9)",
        "a context or a library needs its memory outside PyTorch's, which may already have taken all. At the very "
        "start of "
        "a program, the GPU is full of other processes, or in exclusive mode.",
    ),
    "cublas": (
        "cuBLAS could not create its handle or workspace, which are outside PyTorch's memory; PyTorch had taken "
        "(nearly) all "
        "of the GPU by then.",
        "a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9)",
        "cuBLAS needs some tens of MiB of its own. If it fails with a tiny batch too, an index out of range is the "
        "usual "
        "reason: run with CUDA_LAUNCH_BLOCKING=1.",
    ),
    "cudnn": (
        "cuDNN found no algorithm whose workspace it could get, or could not create its handle. With a full GPU both "
        "mean "
        "out of memory.",
        "a smaller batch or image; torch.backends.cudnn.benchmark = False if it is on",
        "workspaces come on top of tensors, and benchmark mode tries the largest. If the GPU is nearly empty, versions "
        "of "
        "torch and cuDNN that do not match are the other reason.",
    ),
    "solver": (
        "cuSOLVER, cuSPARSE or cuFFT could not get its workspace.",
        "a smaller matrix or batch",
        "these workspaces grow with the problem, and lie outside PyTorch's memory.",
    ),
    "nccl": (
        "NCCL could not allocate its buffers, which lie outside PyTorch's memory: PyTorch or other processes had taken "
        "all.",
        "leave NCCL 1 to 2 GiB: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.95)",
        "each communicator takes buffers at its first operation, when PyTorch's cache may fill the GPU. Several ranks "
        "on "
        "one GPU are the other reason: call torch.cuda.set_device(local_rank).",
    ),
    "bitsandbytes": (
        "bitsandbytes could not allocate memory, which it takes outside PyTorch's; for paged optimizers it is memory "
        "of the "
        "machine.",
        "a smaller batch, or more memory for the machine (RAM, ulimit -l)",
        "paged optimizers keep their state in unified memory, which needs RAM as well.",
    ),
    "triton": (
        "Triton could not load or run a kernel, because PyTorch had taken (nearly) all of the GPU.",
        "a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.95)",
        "kernels and their scratch memory lie outside PyTorch's memory.",
    ),
    "hidden": (
        "PyTorch ran out of memory, and failed again while it wrote the message: NVML does not list processes here, as "
        "in "
        "a MIG slice, a container or on a Jetson.",
        "treat it as an ordinary out-of-memory error: a smaller batch; a newer torch shows the message itself",
        "the assertion is only about the list of processes in the message.",
    ),
    "address_space": (
        "Expandable segments ran out of addresses, not of memory: each reserves more than the memory of the GPU.",
        "fewer CUDA streams, or expandable_segments_reserve in PYTORCH_CUDA_ALLOC_CONF; check ulimit -v",
        "every stream has segments of its own.",
    ),
    "vllm": (
        "vLLM did not find the memory that it wants to take in advance.",
        "gpu_memory_utilization: lower if other processes use the GPU, higher if the model leaves no room for its "
        "cache",
        "vLLM takes that share of the whole GPU, whether or not others use it.",
    ),
}  # fmt: skip
_NOT_GPU: dict[Source, tuple[str, str, str]] = {
    "host": (
        "The memory of the machine (RAM, or shared memory of a container) ran out, not that of the GPU.",
        "fewer DataLoader workers, a larger --shm-size for the container, or less data kept in RAM",
        "tensors on the CPU and DataLoader workers use RAM.",
    ),
    "shared_memory": (
        "A Triton kernel needs more shared memory than a multiprocessor of this GPU has; the memory of the GPU is not "
        "the "
        "problem.",
        "smaller blocks or fewer stages in the kernel, or a version of the library made for this GPU",
        "shared memory is 64 to 228 KiB for each multiprocessor, on every card of a generation.",
    ),
    "other_framework": (
        "Another framework (JAX, TensorFlow or CuPy) ran out of memory, not PyTorch.",
        "its own settings: XLA_PYTHON_CLIENT_PREALLOCATE=false, set_memory_growth, cupy's memory pool limit",
        "PyTorch's settings do not apply to it.",
    ),
}  # fmt: skip


def _of_library(source: Source) -> Diagnosis:
    is_gpu = source in _NO_NUMBERS
    why, helps, because = (_NO_NUMBERS if is_gpu else _NOT_GPU)[source]
    not_helping = "expandable_segments: it does not leave more for others" if is_gpu else "a smaller model on the GPU"
    return Diagnosis(
        cause="no_numbers" if is_gpu else "not_gpu_memory",
        why=why,
        helps=helps,
        because=because,
        does_not_help=(not_helping,),
    )


# --- what else the text tells -----------------------------------------------------------------------------------------


def _with_notes(found: Diagnosis, message: OomMessage, balance: Balance, around: Surroundings) -> Diagnosis:
    also = list(found.also)
    if balance.own_process is not None:
        also.append(
            f"Process {balance.own_process} is this process itself: in a container it has another number inside."
        )
    if message.has_no_process_sizes:
        also.append("The driver did not tell how much each process uses, as under Windows and WSL.")
    if balance.is_spilled:
        also.append(
            "PyTorch holds more than the GPU has: the driver lends it memory of the machine (Windows: CUDA sysmem "
            "fallback), "
            "which is many times slower."
        )
    if around.mig is not None and found.cause != "small_card":
        also.append(f"The GPU is a MIG slice ({around.mig}): a part of a card.")
    if around.ranks_on_this_gpu > 1 and found.cause != "neighbour":
        also.append(
            f"{around.ranks_on_this_gpu} ranks ran out of memory on GPU {message.gpu}: do all of them call "
            "torch.cuda.set_device(local_rank)?"
        )
    return replace(found, also=tuple(also))


def surroundings_of(text: str, messages: Sequence[OomMessage], message: OomMessage) -> Surroundings:
    mig = re.search(r"\bMIG[ -]{1,2}(\d{1,2}g\.\d{1,3}gb)", text)
    same_gpu = {each.rank for each in messages if each.gpu == message.gpu and each.rank is not None}
    return Surroundings(
        is_windows=re.search(r"\b[A-Z]:\\", text) is not None,
        mig=None if mig is None else mig[1],
        ranks_on_this_gpu=max(1, len(same_gpu)),
    )


def _doing(frames: Sequence[Frame]) -> str | None:
    """What the traceback was doing: attention, loss, optimizer, loading."""
    for frame in reversed(frames):
        words = f"{frame.path} {frame.function or ''}".lower().replace("\\", "/")
        if "/optim/" in words or "optimizer" in words:
            return "optimizer"
        if re.search(r"attention|attn|softmax|scaled_dot", words.rpartition("/")[2]):
            return "attention"
        if re.search(r"cross_entropy|nll_loss", words):
            return "loss"
        if re.search(r"load_state_dict|from_pretrained|load_checkpoint|load_model|load_weights", words) or (
            "nn/modules/module.py" in words and frame.function in ("_apply", "to", "cuda", "convert")
        ):
            return "loading"
    return None
