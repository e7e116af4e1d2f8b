"""The caveats of an estimate: one function per reason, in the order of display."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from foretell.analysis.batches import is_trained, largest_possible, training_batches
from foretell.analysis.ending import DECIDES, crashed_after_its_end, signal_name
from foretell.protocol.native_log import ENTRIES
from foretell.records import OutOfMemory, PeakMemory, Together
from foretell.rules.capacity import Capacity
from foretell.trace import Trace
from foretell.units import format_bytes


@dataclass(frozen=True, slots=True)
class Known:
    trace: Trace
    peak: PeakMemory
    oom: OutOfMemory | None
    """The OOM that decides the verdict."""
    together: Together | None


def caveats_of(trace: Trace, peak: PeakMemory, oom: OutOfMemory | None, together: Together | None) -> tuple[str, ...]:
    known = Known(trace, peak, oom, together)
    return (*trace.caveats, *(caveat for reason in REASONS for caveat in reason(known)))


# --- the card and what ran on it --------------------------------------------------------------------------------------


def several_processes(known: Known) -> Iterator[str]:
    number = known.trace.num_gpu_processes
    if known.together is not None:
        count = known.together.num_processes
        yield f"{count} processes used the GPU at the same time; peaks and attribution are those of the largest"
    elif number > 1:
        yield f"{number} processes used a GPU, but no two of them the same one at the same time; this is the largest"


def several_devices(known: Known) -> Iterator[str]:
    devices = {d.device: d for d in known.trace.final if d.peak_reserved_bytes}
    if len(devices) > 1:
        each = ", ".join(f"cuda:{index} {format_bytes(d.peak_reserved_bytes)}" for index, d in sorted(devices.items()))
        yield f"{len(devices)} devices were used (reserved: {each}); this is the largest of them"


def managed_memory(known: Known) -> Iterator[str]:
    most = _peak_managed_bytes(known.trace)
    if most:
        yield (
            f"up to {format_bytes(most)} of managed memory, as used by paged optimizers, is not included: it "
            "stays on the GPU while there is space and moves to the host otherwise"
        )


def _peak_managed_bytes(trace: Trace) -> int:
    driver, in_use, peak = trace.driver, 0, 0
    managed = {number for number, name in enumerate(trace.names) if name == "cudaMallocManaged"}
    if not managed:
        return 0
    for name, size, is_free in zip(driver.name, driver.size, driver.is_free, strict=True):
        if name in managed:
            in_use += -size if is_free else size
            peak = max(peak, in_use)
    return peak


def survived_out_of_memory(known: Known) -> Iterator[str]:
    ooms = known.trace.ooms
    if known.oom is None and ooms:
        first = ooms[0].oom
        times = "once (" if len(ooms) == 1 else f"{len(ooms)} times (first "
        where = f", at {first.where}" if first.where else ""
        requested = format_bytes(first.requested_bytes)
        yield (
            f"ran out of memory {times}in step {first.step}, {first.phase}{where}: {requested} requested), and the "
            "script went on; the peak includes this"
        )


def close_to_the_limit(known: Known) -> Iterator[str]:
    trace, peak = known.trace, known.peak
    capacity = Capacity(
        total_bytes=trace.gpu.total_bytes,
        context_bytes=peak.context_bytes,
        library_bytes=peak.library_bytes,
        used_by_others_bytes=trace.used_by_others_bytes,
    )
    others = max(0, known.together.device_bytes - peak.device_bytes) if known.together else 0
    spare = capacity.spare_bytes(peak.device_high_bytes + others)
    if known.oom is None and spare < 0:
        yield f"close to the limit: the upper end of the interval is {format_bytes(-spare)} above it"


# --- values that were not known ---------------------------------------------------------------------------------------

_WAITS = "decides a loop, "
_ASSUMED = "decides a size, "


def num_values_only_read(trace: Trace) -> int:
    """How many unknown values the script has read that decided nothing, as far as can be seen: it printed them."""
    return sum(read.count for read in trace.unknown_reads if DECIDES not in read.what)


def decides_a_size(what: str) -> bool:
    return _ASSUMED in what


def values_that_decide(known: Known) -> Iterator[str]:
    """One caveat per place, with what decides most: a loop that waits, a size, a branch. All branches share one."""
    whats: dict[str | None, list[str]] = {}
    for read in known.trace.unknown_reads:
        if DECIDES in read.what:
            whats.setdefault(read.where, []).append(read.what[read.what.index(DECIDES) :])
    branches = []
    for place, all_there in whats.items():
        waits = [what.removeprefix(_WAITS) for what in all_there if what.startswith(_WAITS)]
        sizes = [what for what in all_there if what.startswith(_ASSUMED)]
        at = f"at {place or 'an unknown line'}, "
        if waits:
            yield f"{at}a loop waits for an unknown value; {waits[0]}"
        elif sizes:
            more = f" (and {len(sizes) - 1} more there)" if len(sizes) > 1 else ""
            yield f"{at}an unknown value {sizes[0]}{more}"
        else:
            branches.append(place or "an unknown line")
    if branches:
        places = ", ".join(branches[:3]) + (", ..." if len(branches) > 3 else "")
        yield (
            f"what the script does at {places} depends on unknown values: kernels are not executed, so it may take "
            "another path"
        )


# --- libraries that cannot be asked -----------------------------------------------------------------------------------


def ruled_workspaces(known: Known) -> Iterator[str]:
    if known.trace.has_ruled_workspaces and known.trace.pid is not None:  # an import has no process to query cuDNN
        yield (
            f"{why_no_cudnn_is_asked(known.trace)}, so convolution workspaces are estimated; their sum may be off by a "
            "few hundred MiB"
        )


def recurrent_workspaces(known: Known) -> Iterator[str]:
    if known.trace.library_functions() & {"cudnnRNNForward", "cudnnCTCLoss", "cudnnCTCLoss_v8"}:
        yield (
            "the workspaces of cuDNN's recurrent layers and CTC loss are undocumented; the estimate assumes what the "
            "computation has to store"
        )


def fft_work_areas(known: Known) -> Iterator[str]:
    if "cufftXtExec" in known.trace.library_functions():
        yield "cuFFT's work areas are undocumented; each is assumed to be as large as the data it transforms"


def solver_workspaces(known: Known) -> Iterator[str]:
    if _calls(known.trace, "cusolverDn"):
        yield "cuSOLVER's workspaces are undocumented; LAPACK's formulas are used instead"


def sparse_buffers(known: Known) -> Iterator[str]:
    if _calls(known.trace, "cusparse"):
        yield "cuSPARSE's buffers are undocumented; a few bytes per row are assumed"


def sparse_entries(known: Known) -> Iterator[str]:
    if ENTRIES.index("bound") in known.trace.sparse.entries_are:
        yield ("the number of entries of a sparse product or sum depends on unknown indices; the maximum is assumed")


def profiler(known: Known) -> Iterator[str]:
    if _calls(known.trace, "cuptiActivityEnable"):
        yield "the script enabled a profiler; on the virtual GPU it sees only the host"


def _calls(trace: Trace, prefix: str) -> bool:
    return any(function.startswith(prefix) for function in trace.library_functions())


def why_no_cudnn_is_asked(trace: Trace) -> str:
    if trace.engine == "cpu" and trace.cudnn_version is None:
        return "cuDNN is not installed (`pip install nvidia-cudnn-cu13`)"
    return f"cuDNN {format_cudnn(trace.cudnn_version)} cannot be queried without a GPU (9.8 and newer can)"


def format_cudnn(version: int | None) -> str:
    return f"{version // 10000}.{version // 100 % 100}" if version else "of this torch"


# --- how the run ended ------------------------------------------------------------------------------------------------


def batches_differ(known: Known) -> Iterator[str]:
    """If the training was ended early: a batch that was not seen may be larger than all that were."""
    trace = known.trace
    seen = training_batches(trace)
    if not (trace.is_cut_short and seen) or len({batch.shape for batch in seen}) < 2:
        return
    length = (trace.loaders or ())[seen[0].loader].length
    if not all(batch.is_trained for batch in seen) or (length is not None and len(seen) >= length):
        return
    of = f" of {length:,}" if length is not None else ""
    yield (
        f"batches differ in shape, and only {len(seen)}{of} were seen: a larger one may need more; --data-only finds "
        "the largest, --steps all runs them all"
    )


def larger_batches(known: Known) -> Iterator[str]:
    """In another shuffle: its largest sizes in different dimensions may meet in one batch."""
    possible = largest_possible(known.trace)
    if not possible or is_trained(known.trace, possible):
        return
    most = max(batch.num_elements for batch in training_batches(known.trace) if batch.is_trained)
    bound = sum(prod(tensor.shape) for tensor in possible)
    if bound > most:
        yield (
            f"another shuffle may make a larger batch than those trained on: with up to {bound:,} elements instead of "
            f"{most:,}, if batches are padded to their longest sample"
        )


def no_step(known: Known) -> Iterator[str]:
    if not known.trace.steps and known.oom is None:
        yield "no optimizer step was seen; this is the peak of the whole run"


def trained_elsewhere(known: Known) -> Iterator[str]:
    """A model that was never moved to the GPU trains on the CPU, even if something else is on the GPU."""
    trace = known.trace
    if len(trace.steps) < 2 or not trace.memory.time_us or _calls(trace, "cudaGraphLaunch"):
        return
    first, last = trace.steps[0].time_us, trace.steps[-1].time_us
    if not any(first < time_us <= last for time_us in trace.memory.time_us):
        yield "no GPU memory was allocated in any step after the first: the script may have trained on the CPU"


def crash_at_the_end(known: Known) -> Iterator[str]:
    if crashed_after_its_end(known.trace):
        name = signal_name(-known.trace.exit_status)
        yield f"the process died of {name} during shutdown, after the script had finished"


def no_last_word(known: Known) -> Iterator[str]:
    if not known.trace.is_ended and known.oom is None and known.trace.exit_status == 0:
        yield "the process ended without its exit handlers; what PyTorch did after the last step is not included"


def failure_elsewhere(known: Known) -> Iterator[str]:
    exception = known.trace.exception
    if exception is not None and known.trace.exit_status == 0 and known.oom is None:
        yield f"a thread or process of the script failed: {exception.type}: {exception.message}"


REASONS: tuple[Callable[[Known], Iterator[str]], ...] = (
    several_processes,
    several_devices,
    managed_memory,
    survived_out_of_memory,
    close_to_the_limit,
    values_that_decide,
    ruled_workspaces,
    recurrent_workspaces,
    fft_work_areas,
    solver_workspaces,
    sparse_buffers,
    sparse_entries,
    profiler,
    batches_differ,
    larger_batches,
    no_step,
    trained_elsewhere,
    crash_at_the_end,
    no_last_word,
    failure_elsewhere,
)
