"""The estimate of a trace: the numbers, the verdict, the interval, the caveats."""

from __future__ import annotations

from dataclasses import replace

from foretell.allocator.follow import ReplayError
from foretell.analysis.caveats import caveats_of, crashed_after_its_end, signal_name
from foretell.analysis.history import History, follow
from foretell.analysis.leaks import find_leaks
from foretell.analysis.lifetimes import attribute
from foretell.analysis.steps import most_waiting_bytes, step_peaks
from foretell.errors import ScriptError, UnsupportedError
from foretell.records import Attribution, Estimate, Leak, OutOfMemory, OutsidePeak, PeakMemory, StepPeak, first_at
from foretell.rules import overhead
from foretell.trace import DeviceMemory, MissingFunction, Trace
from foretell.units import format_bytes


def estimate_of(trace: Trace, *, attributes: bool = True) -> Estimate:
    """The memory the job needs and, unless `attributes` is False, what holds it.

    Raises if the script itself failed or cannot be estimated; there is never a number then.
    """
    _refuse(trace)
    oom = _fatal_oom(trace)
    if oom is None:
        _refuse_failure(trace)
    counters = _counters(trace)
    history = _followed(trace, counters.device)
    steps, outside_steps, step_caveats = _steps(trace, counters.device, history)
    convolutions = trace.convolutions
    sizes = convolutions.x_bytes, convolutions.y_bytes, convolutions.w_bytes  # tensors cuDNN may copy
    beside = overhead(
        context_bytes=trace.context_bytes,
        is_context_given=trace.is_context_given,
        libraries=trace.libraries,
        functions=trace.library_functions(),
        other_bytes=bytes_not_of_pytorch(trace, counters),
        reserved_bytes=counters.peak_reserved_bytes,
        convolution_bytes=max(map(sum, zip(*sizes, strict=True)), default=0),
        has_workspaces=any(convolutions.workspace_bytes),
    )
    reserved = counters.peak_reserved_bytes
    waiting = most_waiting_bytes(trace.memory, device=counters.device)
    peak = PeakMemory(
        allocated_bytes=counters.peak_allocated_bytes,
        reserved_bytes=reserved,
        library_bytes=beside.library_bytes,
        context_bytes=beside.context_bytes,
        # Live tensors are certain, except for blocks that wait for another stream.
        device_low_bytes=max(reserved + beside.low_bytes, counters.peak_allocated_bytes) - waiting,
        device_high_bytes=reserved + beside.high_bytes,
        request_bytes=reserved + beside.request_bytes,
    )
    attribution, attribution_caveats = _attribution(trace, counters, history) if attributes else (None, ())
    return Estimate(
        engine=trace.engine,
        verdict="oom" if oom else "fits",
        gpu=trace.gpu,
        torch_version=trace.torch_version or "unknown",
        cuda_version=trace.cuda_version,
        peak=peak,
        peak_step=first.index if isinstance(first := first_at(reserved, steps, outside_steps), StepPeak) else None,
        steps=steps,
        oom=oom,
        phases_seen=tuple(phase for phase in trace.phases_seen if phase != "other"),
        caveats=(*caveats_of(trace, peak, oom), *step_caveats, *attribution_caveats),
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
        outside_steps=outside_steps,
    )


# --- runs that give no number -----------------------------------------------------------------------------------------


def _refuse(trace: Trace) -> None:
    for reason in trace.unsupported:
        raise UnsupportedError(f"{_sentence(reason.what)} {_sentence(reason.hint)}".strip())
    if trace.unimplemented:  # even if the script continued: on a real card it would have taken another path
        raise UnsupportedError(_not_implemented(trace.unimplemented))
    if trace.is_timed_out:
        raise ScriptError(
            f"the script was stopped at its time limit (--timeout) after {_where_it_was(trace)}. "
            "Increase the limit, or run fewer steps with --steps N."
        )
    if trace.is_over_host_memory:
        raise ScriptError(
            f"the script was stopped at its limit of host memory (most_host_bytes) after {_where_it_was(trace)}. "
            "Increase the limit, or load less data on the host."
        )


def _where_it_was(trace: Trace) -> str:
    return f"{len(trace.steps)} training steps" if trace.steps else "no training step"


def _refuse_failure(trace: Trace) -> None:
    if trace.exit_status != 0 and not crashed_after_its_end(trace):
        raise ScriptError(_failure(trace))
    if not (trace.final or trace.steps or len(trace.driver.time_us)):
        hint = "Check whether an option or an environment variable (CUDA_VISIBLE_DEVICES) selects the device."
        if trace.pid is None:
            hint = "It started no Python process."
        elif trace.torch_version is None:
            hint = "It did not import torch."
        raise UnsupportedError(
            f"the script never used the GPU, so there is nothing to estimate. {hint} "
            "Under foretell, torch.cuda.is_available() returns True."
        )


def _failure(trace: Trace) -> str:
    if trace.exit_status < 0:
        name = signal_name(-trace.exit_status)
        why = ""
        if name == "SIGKILL":
            why = " This machine probably ran out of RAM: GPU memory does not use any of it, but the script's own data "
            why += "on the host does."
        return f"the script was killed by {name} after {_where_it_was(trace)}.{why}"
    if trace.exception is not None:
        where = f" at {trace.exception.where}" if trace.exception.where else ""
        message = trace.exception.message.strip().splitlines()
        return f"the script itself failed{where}: {trace.exception.type}{': ' + message[0] if message else ''}"
    return f"the script ended with exit code {trace.exit_status} after {_where_it_was(trace)}."


def _not_implemented(functions: tuple[MissingFunction, ...]) -> str:
    named = "; ".join(_called_by(function) for function in functions[:5])
    more = f"; and {len(functions) - 5} more" if len(functions) > 5 else ""
    return (
        f"this script needs CUDA functions that the virtual GPU does not implement yet: {named}{more}. Its memory on a "
        "real GPU is therefore unknown. Please open an issue with this message and the output of `foretell doctor`."
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
    """The OOM that ended the job: the last one, unless the script caught it and continued.

    Continued means that another optimizer step followed, or that a script that never steps ended normally.
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
    has_ended_well = (trace.exit_status == 0 or crashed_after_its_end(trace)) and not trace.steps
    if not is_uncaught and (has_stepped_since or has_ended_well):
        return None
    if trace.exception is not None and trace.exception.is_oom:
        # The uncaught exception has the full message; the allocator's observer sees only part of it.
        message = trace.exception.message or last.oom.message
        return replace(last.oom, message=message, where=last.oom.where or trace.exception.where)
    return last.oom


# --- numbers ----------------------------------------------------------------------------------------------------------


def _counters(trace: Trace) -> DeviceMemory:
    """PyTorch's own peaks on the device with the highest one."""
    seen = [d for step in trace.steps for d in step.devices] + list(trace.final)
    if seen:
        device = trace.busiest_device
        own = [d for d in seen if d.device == device]
        return replace(
            own[-1],
            peak_allocated_bytes=max(d.peak_allocated_bytes for d in own),
            peak_reserved_bytes=max(d.peak_reserved_bytes for d in own),
        )
    # The process ended before PyTorch's counters were written (os._exit): the driver's counters are still known.
    most = max(trace.driver.in_use, default=0)
    return DeviceMemory(
        device=0, allocated_bytes=most, reserved_bytes=most, peak_allocated_bytes=most, peak_reserved_bytes=most
    )


def bytes_not_of_pytorch(trace: Trace, counters: DeviceMemory) -> int:
    """Allocated from the driver outside PyTorch's allocator: cudaMalloc in an extension, NCCL, cuDNN."""
    in_use = (used for used, d in zip(trace.driver.in_use, trace.driver.device, strict=True) if d == counters.device)
    return max(0, max(in_use, default=0) - counters.peak_reserved_bytes)


def _followed(trace: Trace, device: int) -> History | ReplayError:
    try:
        return follow(trace, device)
    except ReplayError as error:
        return error


def _steps(
    trace: Trace, device: int, history: History | ReplayError
) -> tuple[tuple[StepPeak, ...], tuple[OutsidePeak, ...], tuple[str, ...]]:
    """The peaks of each step, and outside the steps, from the history if it is complete; else those of steps alone from
    PyTorch's counters, which never fall."""
    if not trace.steps:
        return (), (), ()
    try:
        if isinstance(history, ReplayError):
            raise history
        return *step_peaks(trace, history), ()
    except ReplayError as error:
        cumulative = tuple(
            StepPeak(
                index=m.index, peak_allocated_bytes=d.peak_allocated_bytes, peak_reserved_bytes=d.peak_reserved_bytes
            )
            for m in trace.steps
            for d in m.devices
            if d.device == device
        )
        return cumulative, (), (f"the peaks of steps are cumulative, because the history is incomplete: {error}",)


def _attribution(
    trace: Trace, counters: DeviceMemory, history: History | ReplayError
) -> tuple[Attribution | None, tuple[str, ...]]:
    """None if the history does not reach PyTorch's own peak: parts that do not add up are useless."""
    if isinstance(history, ReplayError):
        return None, (f"attribution is unavailable: {history}",)
    if history.peak_bytes != counters.peak_allocated_bytes:
        own, counted = format_bytes(history.peak_bytes), format_bytes(counters.peak_allocated_bytes)
        missing = f"the history adds up to {own}, PyTorch's peak is {counted}"
        return None, (f"attribution is unavailable: {missing}",) if len(trace.memory.action) else ()
    return attribute(trace, device=counters.device, history=history), ()


def _leaks(trace: Trace, attribution: Attribution) -> tuple[Leak, ...]:
    keepers = tuple(f"{keeper.name} ({keeper.what}, {keeper.where})" for keeper in trace.keepers)
    return tuple(replace(leak, held_by=keepers) for leak in find_leaks(attribution.blocks, len(trace.steps)))
