"""Turns a `Trace` into an `Estimate`: the numbers, the verdict, the interval, the caveats."""

from __future__ import annotations

import signal
from dataclasses import replace

from foretell.errors import ScriptError, UnsupportedError
from foretell.leaks import find_leaks
from foretell.lifetimes import attribute
from foretell.overhead import overhead
from foretell.records import Attribution, Estimate, Leak, OutOfMemory, PeakMemory, StepPeak
from foretell.replay import ReplayError, most_waiting_bytes, settings_of, step_peaks
from foretell.trace import DeviceMemory, MissingFunction, Trace
from foretell.units import format_bytes


def estimate_of(trace: Trace, *, attributes: bool = True) -> Estimate:
    """What the job needs, and who holds it (unless that is not asked for).

    A script that failed by itself or cannot be estimated raises, and never gives a number.
    """
    _refuse(trace)
    oom = _fatal_oom(trace)
    if oom is None:
        _refuse_failure(trace)
    counters = _counters(trace)
    steps, step_caveats = _steps(trace, counters.device)
    convolutions = _convolutions(trace)
    beside = overhead(
        context_bytes=trace.context_bytes,
        is_context_given=trace.is_context_given,
        libraries=trace.libraries,
        functions=trace.library_functions(),
        other_bytes=_bytes_not_of_pytorch(trace, counters),
        reserved_bytes=counters.peak_reserved_bytes,
        convolution_bytes=max((x + y + w for _, x, y, w in convolutions), default=0),
        has_workspaces=any(workspace for workspace, *_ in convolutions),
    )
    reserved = counters.peak_reserved_bytes
    waiting = most_waiting_bytes(trace.memory, device=counters.device)
    peak = PeakMemory(
        allocated_bytes=counters.peak_allocated_bytes,
        reserved_bytes=reserved,
        library_bytes=beside.library_bytes,
        context_bytes=beside.context_bytes,
        # What it holds in tensors is certain, but for what waits for another stream.
        device_low_bytes=max(reserved + beside.low_bytes, counters.peak_allocated_bytes) - waiting,
        device_high_bytes=reserved + beside.high_bytes,
        request_bytes=reserved + beside.request_bytes,
    )
    attribution, attribution_caveats = _attribution(trace, counters) if attributes else (None, ())
    return Estimate(
        engine=trace.engine,
        verdict="oom" if oom else "fits",
        gpu=trace.gpu,
        torch_version=trace.torch_version or "unknown",
        cuda_version=trace.cuda_version,
        peak=peak,
        peak_step=next((step.index for step in steps if step.peak_reserved_bytes >= reserved), None),
        steps=steps,
        oom=oom,
        phases_seen=tuple(phase for phase in trace.phases_seen if phase != "other"),
        caveats=(*_caveats(trace, peak, oom), *step_caveats, *attribution_caveats),
        redirected_writes=trace.redirected_writes,
        not_sent=trace.not_sent,
        seconds=trace.seconds,
        command=trace.command,
        ended_early=trace.ended_early,
        library_names=beside.library_names,
        is_context_given=trace.is_context_given,
        used_by_others_bytes=trace.used_by_others_bytes,
        attribution=attribution,
        leaks=_leaks(trace, attribution) if attribution is not None else (),
    )


# --- runs that give no number -----------------------------------------------------------------------------------------


def _refuse(trace: Trace) -> None:
    for reason in trace.unsupported:
        raise UnsupportedError(f"{_sentence(reason.what)} {_sentence(reason.hint)}".strip())
    if trace.unimplemented:  # also when the script went on: a real card would have gone another way
        raise UnsupportedError(_not_implemented(trace.unimplemented))
    if trace.is_timed_out:
        raise ScriptError(
            f"the script had not ended when its time was up (--timeout), after {_where_it_was(trace)}. It was ended. "
            "Give it more time, or fewer steps with --steps N."
        )


def _where_it_was(trace: Trace) -> str:
    return f"{len(trace.steps)} training steps" if trace.steps else "no training step"


def _refuse_failure(trace: Trace) -> None:
    if trace.exit_status != 0 and not _crashed_after_its_end(trace):
        raise ScriptError(_failure(trace))
    if not (trace.final or trace.steps or len(trace.driver.time_us)):
        hint = "Does it choose the device by an option or an environment variable (CUDA_VISIBLE_DEVICES)?"
        if trace.pid is None:
            hint = "No Python process was seen in it."
        elif trace.torch_version is None:
            hint = "It did not even import torch."
        raise UnsupportedError(
            f"the script never used the GPU, so there is nothing to estimate. {hint} "
            "Under foretell torch.cuda.is_available() is True."
        )


def _crashed_after_its_end(trace: Trace) -> bool:
    """The script had ended well and Python was being taken apart, where torch's threads can make it abort."""
    return trace.exit_status in (-signal.SIGABRT, -signal.SIGSEGV) and trace.is_ended and trace.exception is None


def _failure(trace: Trace) -> str:
    if trace.exit_status < 0:
        name = _signal_name(-trace.exit_status)
        why = ""
        if name == "SIGKILL":
            why = " This machine has probably run out of RAM: the GPU's memory takes none of it, but what the script "
            why += "keeps on the host does."
        return f"the script was killed by {name} after {_where_it_was(trace)}.{why}"
    if trace.exception is not None:
        where = f" at {trace.exception.where}" if trace.exception.where else ""
        message = trace.exception.message.strip().splitlines()
        return f"the script failed by itself{where}: {trace.exception.type}{': ' + message[0] if message else ''}"
    return f"the script ended with exit code {trace.exit_status} after {_where_it_was(trace)}."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_implemented(functions: tuple[MissingFunction, ...]) -> str:
    named = "; ".join(_called_by(function) for function in functions[:5])
    more = f"; and {len(functions) - 5} more" if len(functions) > 5 else ""
    return (
        f"this script needs CUDA functions that the virtual GPU does not have yet: {named}{more}. What it would need "
        "on a real card is therefore not known. Please open an issue with foretell, with this message and what "
        "`foretell doctor` prints."
    )


def _called_by(function: MissingFunction) -> str:
    operator = f", called by {function.operator}" if function.operator else ""
    where = f", at {function.where}" if function.where else ""
    return f"{function.name}{operator}{where}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


# --- out of memory ----------------------------------------------------------------------------------------------------


def _fatal_oom(trace: Trace) -> OutOfMemory | None:
    """The OOM that ended the job: the last one, unless the script caught it and went on.

    Went on: another optimizer step followed, or a script that never steps ended well.
    """
    if not trace.ooms:
        if trace.exception is not None and trace.exception.is_oom and trace.exit_status != 0:
            message = trace.exception.message or "CUDA out of memory."
            return OutOfMemory(
                step=len(trace.steps), phase="other", requested_bytes=0, message=message, where=trace.exception.where
            )
        return None
    last = trace.ooms[-1]
    is_uncaught = trace.exception is not None and trace.exception.is_oom
    has_stepped_since = bool(trace.steps) and trace.steps[-1].time_us > last.time_us
    has_ended_well = (trace.exit_status == 0 or _crashed_after_its_end(trace)) and not trace.steps
    if not is_uncaught and (has_stepped_since or has_ended_well):
        return None
    if trace.exception is not None and trace.exception.is_oom:
        # The message that left the script is whole; the one the allocator's observer sees is not.
        message = trace.exception.message or last.oom.message
        return replace(last.oom, message=message, where=last.oom.where or trace.exception.where)
    return last.oom


# --- numbers ----------------------------------------------------------------------------------------------------------


def _counters(trace: Trace) -> DeviceMemory:
    """PyTorch's own peaks, of the device that held the most."""
    seen = [d for step in trace.steps for d in step.devices] + list(trace.final)
    if seen:
        device = max(seen, key=lambda d: d.peak_reserved_bytes).device
        own = [d for d in seen if d.device == device]
        return replace(
            own[-1],
            peak_allocated_bytes=max(d.peak_allocated_bytes for d in own),
            peak_reserved_bytes=max(d.peak_reserved_bytes for d in own),
        )
    # The process ended before PyTorch's counters were written (os._exit): what the driver gave is known all the same.
    most = max(trace.driver.in_use, default=0)
    return DeviceMemory(
        device=0, allocated_bytes=most, reserved_bytes=most, peak_allocated_bytes=most, peak_reserved_bytes=most
    )


def _convolutions(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Bytes of the workspace, x, y and w, which cuDNN may copy, of every convolution."""
    calls = trace.library
    numbers = {number for number, name in enumerate(trace.names) if name.startswith("cudnnBackendExecute")}
    sizes = zip(calls.name, calls.workspace_bytes, calls.argument_2, calls.argument_3, calls.argument_4, strict=True)
    return [(workspace, x, y, w) for name, workspace, x, y, w in sizes if name in numbers]


def _bytes_not_of_pytorch(trace: Trace, counters: DeviceMemory) -> int:
    """Taken from the driver by others than PyTorch's allocator: cudaMalloc in an extension, NCCL, cuDNN's own."""
    in_use = (used for used, d in zip(trace.driver.in_use, trace.driver.device, strict=True) if d == counters.device)
    return max(0, max(in_use, default=0) - counters.peak_reserved_bytes)


def _peak_managed_bytes(trace: Trace) -> int:
    driver, in_use, peak = trace.driver, 0, 0
    for name, size, is_free in zip(driver.name, driver.size, driver.is_free, strict=True):
        if name < len(trace.names) and trace.names[name] == "cudaMallocManaged":
            in_use += -size if is_free else size
            peak = max(peak, in_use)
    return peak


def _steps(trace: Trace, device: int) -> tuple[tuple[StepPeak, ...], tuple[str, ...]]:
    """The peaks of each step, from the history where it is whole, else PyTorch's counters, which never fall."""
    settings = settings_of(trace.memory, trace.allocator)
    try:
        if trace.steps:
            return step_peaks(trace.memory, trace.steps, device=device, settings=settings), ()
        return (), ()
    except ReplayError as error:
        cumulative = tuple(
            StepPeak(
                index=m.index, peak_allocated_bytes=d.peak_allocated_bytes, peak_reserved_bytes=d.peak_reserved_bytes
            )
            for m in trace.steps
            for d in m.devices
            if d.device == device
        )
        return cumulative, (f"the peaks of single steps are those since the beginning: {error}",)


def _attribution(trace: Trace, counters: DeviceMemory) -> tuple[Attribution | None, tuple[str, ...]]:
    """None where the history does not come to PyTorch's own peak: parts that do not add up help nobody."""
    try:
        found = attribute(trace, device=counters.device)
    except ReplayError as error:
        return None, (f"who holds the memory is not known: {error}",)
    held = sum(found.blocks[number].bytes for number in found.at_peak)
    if held != counters.peak_allocated_bytes:
        missing = f"the history comes to {format_bytes(held)}, PyTorch to {format_bytes(counters.peak_allocated_bytes)}"
        return None, (f"who holds the memory is not known: {missing}",) if len(trace.memory.action) else ()
    return found, ()


def _leaks(trace: Trace, attribution: Attribution) -> tuple[Leak, ...]:
    keepers = tuple(f"{keeper.name} ({keeper.what}, {keeper.where})" for keeper in trace.keepers)
    return tuple(replace(leak, held_by=keepers) for leak in find_leaks(attribution.blocks, len(trace.steps)))


# --- caveats ----------------------------------------------------------------------------------------------------------


def _caveats(trace: Trace, peak: PeakMemory, oom: OutOfMemory | None) -> tuple[str, ...]:
    caveats = list(trace.caveats)
    if trace.num_gpu_processes > 1:
        caveats.append(
            f"{trace.num_gpu_processes} processes used the GPU; this is the one that held the most, not their sum"
        )
    devices = {d.device: d for d in trace.final if d.peak_reserved_bytes}
    if len(devices) > 1:
        each = ", ".join(f"cuda:{index} {format_bytes(d.peak_reserved_bytes)}" for index, d in sorted(devices.items()))
        caveats.append(f"{len(devices)} devices were used (reserved: {each}); this is the one that held the most")
    managed_bytes = _peak_managed_bytes(trace)
    if managed_bytes:
        caveats.append(
            f"up to {format_bytes(managed_bytes)} of managed memory, as paged optimizers use, is not in these numbers: "
            "it lies on the card as long as there is room and moves to the host when there is none"
        )
    if oom is None and trace.ooms:
        first = trace.ooms[0].oom
        times = "once" if len(trace.ooms) == 1 else f"{len(trace.ooms)} times"
        caveats.append(
            f"ran out of memory {times} (step {first.step}, {first.phase}) and went on; the peak includes that"
        )
    available = trace.gpu.total_bytes - trace.used_by_others_bytes
    if oom is None and peak.device_high_bytes > available:
        over = format_bytes(peak.device_high_bytes - available)
        caveats.append(f"close to the limit: at the upper end of the interval it would be {over} over")
    caveats += _unknown_read_caveats(trace)
    caveats += _library_caveats(trace)
    if not trace.steps and oom is None:
        caveats.append("no optimizer step was seen: this is the peak of the whole run")
    if _crashed_after_its_end(trace):
        caveats.append(
            f"the process died of {_signal_name(-trace.exit_status)} while it shut down, after the script's end"
        )
    if not trace.is_ended and oom is None:
        caveats.append("the process ended without a word (os._exit): what it did after its last step is not included")
    if trace.exception is not None and trace.exit_status == 0 and oom is None:
        caveats.append(f"a thread or process of the script failed: {trace.exception.type}: {trace.exception.message}")
    return tuple(caveats)


_DECIDES_A_SIZE = "decides a size"


def _unknown_read_caveats(trace: Trace) -> list[str]:
    """One for the values that were looked at, and one for each place where such a value set the size of a tensor."""
    looked_at = [read for read in trace.unknown_reads if _DECIDES_A_SIZE not in read.what]
    caveats = []
    if looked_at:
        total = sum(read.count for read in looked_at)
        places = list(dict.fromkeys(read.where for read in looked_at if read.where))
        where = f" ({', '.join(places[:3])}{', ...' if len(places) > 3 else ''})" if places else ""
        caveats.append(
            f"{'1 value was read that is' if total == 1 else f'{total} values were read that are'} not known, as "
            f"kernels compute nothing{where}; what depends on {'it' if total == 1 else 'them'} may take another path"
        )
    sizes: dict[str | None, dict[str, None]] = {}
    for read in trace.unknown_reads:
        if _DECIDES_A_SIZE in read.what:
            sizes.setdefault(read.where, {})[read.what[read.what.index(_DECIDES_A_SIZE) :]] = None
    for place, whats in sizes.items():
        what, *others = whats
        more = f", and {len(others)} more like it there" if others else ""
        caveats.append(f"at {place or 'an unknown line'} a value that is not known {what}{more}")
    return caveats


def _library_caveats(trace: Trace) -> list[str]:
    """What the virtual GPU had to model of NVIDIA's libraries, because they cannot be asked."""
    caveats = []
    functions = trace.library_functions()
    if "cudnnBackendExecute (by rule)" in functions:
        caveats.append(
            f"{why_no_cudnn_is_asked(trace)}: the workspaces of convolutions follow a rule, and their sum may be off "
            "by some hundred MiB"
        )
    if functions & {"cudnnRNNForward", "cudnnCTCLoss", "cudnnCTCLoss_v8"}:
        caveats.append(
            "the workspaces of cuDNN's recurrent nets and CTC loss are not documented: they are taken as what the "
            "computation has to keep"
        )
    if "cufftXtExec" in functions:
        caveats.append("cuFFT's work areas are not documented: each is taken as large as the data it transforms")
    if any(function.startswith("cusolverDn") for function in functions):
        caveats.append("cuSOLVER's workspaces are not documented: LAPACK's formulas stand in")
    if any(function.startswith("cusparse") for function in functions):
        caveats.append("cuSPARSE's buffers are not documented: some bytes for each row stand in")
    if any(function.endswith("(entries not known)") for function in functions):
        caveats.append(
            "a product or sum of sparse matrices has as many entries as their indices say, which were not known: the "
            "most it can have is taken"
        )
    if any(function.startswith("cuptiActivityEnable") for function in functions):
        caveats.append("a profiler was switched on in the script: on the virtual GPU it sees the host only")
    return caveats


def why_no_cudnn_is_asked(trace: Trace) -> str:
    if trace.engine == "cpu" and trace.cudnn_version is None:
        return "there is no cuDNN here to ask (`pip install nvidia-cudnn-cu13`)"
    return f"cuDNN {format_cudnn(trace.cudnn_version)} did not plan without a GPU (9.8 and newer do)"


def format_cudnn(version: int | None) -> str:
    return f"{version // 10000}.{version // 100 % 100}" if version else "of this torch"
