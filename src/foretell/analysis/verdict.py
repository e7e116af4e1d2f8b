"""The estimate of a trace: the numbers, the verdict, the interval, the caveats."""

from __future__ import annotations

from dataclasses import replace

from foretell.allocator.follow import ReplayError
from foretell.analysis.batches import batches_of
from foretell.analysis.caveats import caveats_of, num_values_only_read
from foretell.analysis.ending import ended_by, fatal_oom, refuse, require_a_number
from foretell.analysis.evidence import evidence_of
from foretell.analysis.history import History, follow
from foretell.analysis.leaks import find_leaks
from foretell.analysis.lifetimes import attribute
from foretell.analysis.processes import oom_together, together
from foretell.analysis.ranks import compare_ranks
from foretell.analysis.steps import step_peaks
from foretell.records import (
    Attribution,
    Estimate,
    Leak,
    OutOfMemory,
    OutsidePeak,
    PeakMemory,
    Performance,
    Phase,
    StepPeak,
    first_at,
)
from foretell.rules import loaded_libraries, widened
from foretell.rules.interval import causes_of
from foretell.time import performance, why_unknown
from foretell.trace import DeviceMemory, Trace
from foretell.trace.records import PHASES
from foretell.units import format_bytes


def estimate_of(trace: Trace, *, attributes: bool = True) -> Estimate:
    """The memory the job needs and, unless `attributes` is False, what holds it. Of several ranks, that of the one that
    runs out of memory, or needs the most.

    Once a training step was seen there is a number, whatever ended the run (`Estimate.ended_by`). Raises if the run
    cannot be estimated, or failed before that.
    """
    if trace.rank is None:
        return _estimate_of_one(trace, attributes=attributes)
    world, ranks, worst = compare_ranks(trace, lambda each: _estimate_of_one(each, attributes=False))
    return replace(_estimate_of_one(worst, attributes=attributes), world=world, ranks=ranks)


def estimates_of_others(trace: Trace, estimate: Estimate) -> tuple[Estimate, ...]:
    """Of a job of several ranks: what each row of `Estimate.ranks` needs besides that of the estimate, and what holds
    it. Their `world` names them as its `worst_rank`."""
    if estimate.world is None:
        return ()
    numbers = {rank.rank for rank in estimate.ranks} - {estimate.world.worst_rank}
    found = []
    for own in (replace(trace, other_ranks=()), *trace.other_ranks):
        if own.rank is not None and own.rank.rank in numbers:
            world = replace(estimate.world, worst_rank=own.rank.rank)
            found.append(replace(_estimate_of_one(own, attributes=True), world=world, ranks=estimate.ranks))
    return tuple(found)


def _estimate_of_one(trace: Trace, *, attributes: bool) -> Estimate:
    refuse(trace)
    oom = fatal_oom(trace)
    end = ended_by(trace, oom)
    if oom is None:
        require_a_number(trace, end)
    at_once = together(trace)
    oom = oom or oom_together(trace, at_once)
    counters = counters_of(trace)
    history = _followed(trace, counters.device)
    steps, outside_steps, step_caveats = _steps(trace, counters.device, history)
    if not (attributes or trace.memory.action):  # no history was wanted
        step_caveats = ()
    batches = batches_of(trace, steps, outside_steps, oom)
    reserved = counters.peak_reserved_bytes
    library_names, loaded = loaded_libraries(trace.libraries, trace.library_functions())
    library_bytes = loaded + bytes_not_of_pytorch(trace, counters)
    device_bytes = reserved + library_bytes + trace.context_bytes
    evidence = evidence_of(trace, counters, library_bytes=loaded, steps=steps, batches=batches)
    causes = causes_of(evidence)
    certain = PeakMemory(
        allocated_bytes=counters.peak_allocated_bytes,
        reserved_bytes=reserved,
        library_bytes=library_bytes,
        context_bytes=trace.context_bytes,
        device_low_bytes=device_bytes,
        device_high_bytes=device_bytes,
        request_bytes=device_bytes,
    )
    peak = widened(certain, causes)
    step, step_time_caveats = _performance(trace, oom)
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
        phases_seen=_phases_seen(trace, attribution),
        caveats=(*caveats_of(trace, peak, oom, at_once), *step_caveats, *attribution_caveats, *step_time_caveats),
        redirected_writes=trace.redirected_writes,
        not_sent=trace.not_sent,
        isolation=trace.isolation,
        seconds=trace.seconds,
        command=trace.command,
        ended_early=trace.ended_early,
        num_unknown_reads=num_values_only_read(trace),
        library_names=library_names,
        is_context_given=trace.is_context_given,
        used_by_others_bytes=trace.used_by_others_bytes,
        attribution=attribution,
        leaks=_leaks(trace, attribution) if attribution is not None else (),
        outside_steps=outside_steps,
        together=at_once,
        need=trace.need if oom else None,
        need_unknown=trace.need_unknown if oom else None,
        ended_by=end,
        foretell_version=trace.foretell_version,
        batches=batches,
        causes=causes,
        evidence=evidence,
        performance=step,
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


def counters_of(trace: Trace) -> DeviceMemory:
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


def _performance(trace: Trace, oom: OutOfMemory | None) -> tuple[Performance | None, tuple[str, ...]]:
    """Time and utilization of a step, where they were asked for, and what to know about them."""
    if not trace.is_time_asked or oom is not None:
        return None, ()
    found = performance(trace, trace.gpu, host_factor=trace.host_factor)
    if found is None:
        return None, (f"no step time: {why_unknown(trace)}",)
    return replace(found, price_per_hour=trace.price_per_hour), found.caveats


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
        why = f"the peaks of steps are cumulative, because the history is incomplete: {error}"
        return cumulative, (), (why,)


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


def _phases_seen(trace: Trace, attribution: Attribution | None) -> tuple[Phase, ...]:
    """Those marked during the run, and those that the attribution has found."""
    found = {span.phase for span in attribution.spans} if attribution is not None else set()
    return tuple(phase for phase in PHASES if phase in found.union(trace.phases_seen) and phase != "other")


def _leaks(trace: Trace, attribution: Attribution) -> tuple[Leak, ...]:
    keepers = tuple(f"{keeper.name} ({keeper.what}, {keeper.where})" for keeper in trace.keepers)
    return tuple(replace(leak, held_by=keepers) for leak in find_leaks(attribution.blocks, len(trace.steps)))
