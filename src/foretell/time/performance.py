"""Time and utilization of the recorded step on a card: work, how long each piece takes, and the queue."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from foretell.records import Activity, ActivityTimeline, Bound, Gpu, KernelTime, Performance, Phase, StepTime, Wait
from foretell.time.model import Constants, constants, demand, seconds
from foretell.time.occupancy import fp32_flops, sm_active, sm_occupancy
from foretell.time.queue import Host, Played, play, union
from foretell.time.work import Item, Kind, Work, work_of
from foretell.trace import Trace

TYPICAL_FACTOR = 0.8
FACTORS = (0.6, 3.0)
"""The CPU of a machine with GPUs against that of the experiments, which the time of a fixed loop stands for: from a
fast desktop to an older server. One factor explained all jobs of a machine, but differed much between two; the typical
one, and the two times below, make the bias of utilization small on the A100 whose jobs waited for their host."""
OPERATOR_SECONDS = 3e-6
"""Of the host for an operator, with the Python around it and with caches that the driver's work has emptied."""
LAUNCH_SECONDS = (4e-6, 8e-6, 12e-6)
"""Of the driver: low, typical, high."""
KERNEL_SPREAD = (0.79, 1.26)
"""Kernels take so much of what the model says, in five of six models of families that no constant was fitted on."""
DATACENTER_SPREAD = (0.79, 1.5)
"""Tensor cores of cards for data centres: what is public contradicts itself by 40 %."""
UNKNOWN_SPREAD = 2.0
DOUBTFUL = ("grouped_conv_nhwc", "grouped_conv_backward_nhwc")
"""Kernels that may take several times as long: which one cuDNN has for them differs between its versions and sizes."""
ACTIVITY_FACTORS, ACTIVITY_KERNELS = (0.7, 1.5), (0.85, 1.15)
"""Between which host and kernels lie, relative to what is expected, for the interval of utilization: a busy GPU has a
fast host and slow kernels, so the ends of the step time are not those of utilization."""
ACTIVITY_SPREAD = {
    "gract": (0.95, 1.03), "gpu": (0.95, 1.03), "smact": (0.85, 1.1), "smocc": (0.8, 1.25),
    "tensor_active": (0.7, 1.2), "fp32_active": (0.68, 1.5), "dram_active": (0.8, 1.2),
}  # fmt: skip
"""Beyond that, because occupancy and DCGM's sampling are not modelled exactly; by half of the MLPs and CNNs on an A100
whose utilization was measured, but for tensor_active and dram_active, which were not."""
LEAST_SPREAD = 0.004
NUM_BUCKETS = 100
NUM_WAITS = 5
MANY_UNKNOWN = 0.3
GRACT_OF_BUSY = 0.93
"""DCGM's graphics engine never counts as active for more: nvidia-smi's utilization is 1.07 times as high, in all runs
that were measured on an A100."""
IDLE_START = 0.7
"""Of the time that a kernel takes to start and to end, in which the GPU counts as busy."""
SMOCC_REACHED = 0.8
"""Achieved over theoretical occupancy: blocks end at different times. By half of the measured MLPs on
an A100, 0.75 to 0.8; of the CNNs, 0.8 to 0.85."""
_NUMBERS = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step, played with one set of assumptions."""

    played: Played
    durations: tuple[float, ...]
    factor: float
    """Of the host."""


def performance(trace: Trace, gpu: Gpu, *, host_factor: float | None = None) -> Performance | None:
    """None if the operators of no step were recorded, or most of its work is of unknown kernels; `why_unknown` says
    which."""
    return performance_where_known(work_of(trace), gpu, host_factor=host_factor)


def performance_where_known(work: Work | None, gpu: Gpu, *, host_factor: float | None = None) -> Performance | None:
    """As `performance`, of the work of a trace."""
    if work is None or _why_not(work) is not None:
        return None
    return performance_of(work, gpu, host_factor=host_factor)


def why_unknown(trace: Trace) -> str | None:
    """Why there is no time of this trace."""
    return why_work_unknown(work_of(trace))


def why_work_unknown(work: Work | None) -> str | None:
    return "no second training step, and no second pass of a model, was recorded" if work is None else _why_not(work)


def _why_not(work: Work) -> str | None:
    kernels = [item for item in work.items if item.kind == "kernel"]
    if not kernels:
        return "the recorded step runs nothing on the GPU"
    if work.num_graphs:
        return "the step replays CUDA graphs, whose kernels are not recorded"
    if sum(not item.is_known and not item.bytes for item in kernels) > MANY_UNKNOWN * len(kernels):
        return "most of its kernels are compiled ones (torch.compile, Triton), whose work is not known"
    return None


def performance_of(work: Work, gpu: Gpu, *, host_factor: float | None = None) -> Performance:
    factor = TYPICAL_FACTOR if host_factor is None else host_factor
    factors = FACTORS if host_factor is None else (host_factor, host_factor)
    shares = constants()
    unknown = _share(work, gpu, shares, lambda item: not item.is_known)
    doubtful = _share(work, gpu, shares, lambda item: not item.is_known or item.kernel_class in DOUBTFUL)
    low, high = DATACENTER_SPREAD if _is_uncertain(work, gpu) else KERNEL_SPREAD
    fast = _play(work, gpu, shares, factor=factors[0], launch=LAUNCH_SECONDS[0], scale=low)
    typical = _play(work, gpu, shares, factor=factor, launch=LAUNCH_SECONDS[1], scale=1.0)
    scale = high * (1.0 + UNKNOWN_SPREAD * doubtful)
    slow = _play(work, gpu, shares, factor=factors[1], launch=LAUNCH_SECONDS[2], scale=scale)
    kernels = _kernel_seconds(work, typical)
    activity = _activity(work, gpu, typical)
    spread = ACTIVITY_FACTORS if host_factor is None else (1.0, 1.0)
    ends = [
        _activity(work, gpu, _play(work, gpu, shares, factor=factor * host, launch=LAUNCH_SECONDS[1], scale=kernels))
        for host, kernels in zip(spread, reversed(ACTIVITY_KERNELS), strict=True)
    ]
    period = _period(work, typical)
    return Performance(
        time=_step_time(work, fast, typical, slow, factor, is_given=host_factor is not None),
        activity=activity,
        activity_low=_extreme(min, [activity, *ends], at=0),
        activity_high=_extreme(max, [activity, *ends], at=1),
        timeline=_timeline(work, gpu, typical),
        kernels=_grouped(work, gpu, kernels, _class),
        modules=_grouped(work, gpu, kernels, lambda item: _pattern(item.module)) if _has_modules(work) else (),
        unknown_share=unknown,
        joules=None if gpu.power_watts is None else period * gpu.power_watts * (0.25 + 0.75 * activity.smact),
        caveats=tuple(_caveats(work, gpu)),
    )


def typical_outcome(work: Work, gpu: Gpu, *, host_factor: float | None) -> tuple[Outcome, ActivityTimeline]:
    """The step as it is expected, and utilization over it."""
    factor = TYPICAL_FACTOR if host_factor is None else host_factor
    outcome = _play(work, gpu, constants(), factor=factor, launch=LAUNCH_SECONDS[1], scale=1.0)
    return outcome, _timeline(work, gpu, outcome)


def plain_milliseconds(work: Work, gpu: Gpu) -> tuple[float, float]:
    """What simpler rules say of the same work: FLOPs over the peaks of the data sheet, and the roofline."""
    flops = roofline = 0.0
    peaks = {"tensor": gpu.tensor_flops or gpu.fp32_flops, "tf32": gpu.tensor_flops / 2 or gpu.fp32_flops}
    for item in work.items:
        if item.kind == "kernel":
            computing = item.flops / peaks.get(item.unit, gpu.fp32_flops)
            flops += computing
            roofline += max(computing, item.bytes / gpu.bandwidth_bytes_per_second)
    return 1e3 * flops, 1e3 * roofline


def plain_parts(work: Work, gpu: Gpu) -> dict[str, float]:
    """Milliseconds that computing and moving would take at the peaks of the data sheet, by class of kernel, and the
    number of launches in thousands: what a learned estimator may know of a step."""
    peaks = {"tensor": gpu.tensor_flops or gpu.fp32_flops, "tf32": gpu.tensor_flops / 2 or gpu.fp32_flops}
    parts: dict[str, float] = defaultdict(float)
    for item in work.items:
        if item.kind == "kernel":
            name = _class(item)
            parts[f"{name} bytes"] += 1e3 * item.bytes / gpu.bandwidth_bytes_per_second
            if item.flops:
                parts[f"{name} FLOPs"] += 1e3 * item.flops / peaks.get(item.unit, gpu.fp32_flops)
            parts["launches"] += item.launches / 1000
    return dict(parts)


def _play(work: Work, gpu: Gpu, shares: Constants, *, factor: float, launch: float, scale: float) -> Outcome:
    durations = tuple(scale * seconds(item, gpu, shares) if item.launches else 0.0 for item in work.items)
    host = Host(operator=OPERATOR_SECONDS * factor, launch=launch, factor=factor)
    return Outcome(play(work, durations, host), durations, factor)


def _period(work: Work, outcome: Outcome) -> float:
    """Worker processes load beside the step: it cannot be shorter than they take for a batch."""
    return max(outcome.played.period, _worker_seconds(work, outcome.factor))


def _worker_seconds(work: Work, factor: float) -> float:
    """Where workers were not measured: if the script waited for them although the virtual GPU is fast, the recorded
    step took as long as they did."""
    if work.worker_us is not None:
        return work.worker_us * 1e-6 * factor
    is_waiting = work.has_workers and work.loader_us > 0.3 * work.wall_us
    return work.wall_us * 1e-6 if is_waiting else 0.0


def _is_uncertain(work: Work, gpu: Gpu) -> bool:
    uses_tensor_cores = any(item.unit in ("tensor", "tf32") and item.flops for item in work.items)
    return uses_tensor_cores and gpu.tensor_flops > 0 and gpu.gpu_class != "consumer"


def _caveats(work: Work, gpu: Gpu) -> list[str]:
    found = []
    if gpu.power_watts is None:
        found.append(f"the power of {gpu.name} is not known, so the step time assumes that it holds its boost clock")
    if work.has_workers and work.worker_us is None and not _worker_seconds(work, 1.0):
        kept_up = "the DataLoader's workers kept up with the virtual GPU"
        found.append(f"{kept_up}; whether they keep up with a real one is not known")
    return found


# --- the time of a step -----------------------------------------------------------------------------------------------


def _step_time(
    work: Work, fast: Outcome, typical: Outcome, slow: Outcome, factor: float, *, is_given: bool
) -> StepTime:
    period = _period(work, typical)
    busy = union(_spans(work, typical, "kernel", "copy"))
    copies = union(_spans(work, typical, "copy"))
    loader = max(work.loader_us * 1e-6 * factor if not work.has_workers else 0.0, _worker_seconds(work, factor))
    host = max(0.0, typical.played.host_seconds - work.loader_us * 1e-6 * factor)
    low, high = (_period(work, outcome) for outcome in (fast, slow))
    return StepTime(
        kind=work.kind,
        step_ms=1e3 * period,
        step_low_ms=1e3 * min(low, period),
        step_high_ms=1e3 * max(high, period),
        gpu_busy_ms=1e3 * busy,
        host_ms=1e3 * host,
        loader_ms=1e3 * loader,
        copy_ms=1e3 * copies,
        bound=_bound(period, union(_spans(work, typical, "kernel")), host, loader, copies),
        samples_per_second=None if work.num_samples is None else work.num_samples / period,
        phases={phase: 1e3 * took for phase, took in _phases(work, typical, period).items()},
        host_factor=factor,
        host_factor_source="given" if is_given else "typical",
    )


def _bound(period: float, kernels: float, host: float, loader: float, copies: float) -> Bound:
    """What fills the step; loading without workers adds to it, and hides nothing."""
    if kernels > 0.85 * period:
        return "gpu"
    parts: dict[Bound, float] = {"gpu": kernels, "host": host, "loader": loader, "copies": copies}
    largest = max(parts, key=lambda name: parts[name])
    return largest if parts[largest] > 0.5 * period else "mixed"


def _spans(work: Work, outcome: Outcome, *kinds: Kind) -> list[tuple[float, float]]:
    items = zip(outcome.played.spans, work.items, strict=True)
    return [span for span, item in items if item.launches and item.kind in kinds]


def _phases(work: Work, outcome: Outcome, period: float) -> dict[Phase, float]:
    """The time from the end of one piece of work to the end of the next counts for the phase of the next."""
    took: dict[Phase, float] = defaultdict(float)
    until = outcome.played.begin
    for item, (_, end) in zip(work.items, outcome.played.spans, strict=True):
        if item.launches and end > until:
            took[item.phase] += end - until
            until = end
    rest = period - sum(took.values())
    if rest > 0:
        took["other"] += rest
    return dict(took)


# --- utilization ------------------------------------------------------------------------------------------------------


def _activity(work: Work, gpu: Gpu, outcome: Outcome) -> Activity:
    period, start = _period(work, outcome), constants().start_seconds
    sm = occupancy = tensor = fp32 = dram = 0.0
    for item, (begin, end) in zip(work.items, outcome.played.spans, strict=True):
        if item.kind != "kernel":
            continue
        # Between the start of a kernel and its first block, no SM holds a warp.
        took = max(0.0, end - begin - IDLE_START * item.launches * start)
        sm += took * sm_active(item, gpu)
        occupancy += took * sm_occupancy(item, gpu) * SMOCC_REACHED
        need = demand(item, gpu)
        dram += need.byte_seconds
        if item.unit in ("tensor", "tf32") and gpu.tensor_flops:
            tensor += item.flops / gpu.tensor_flops * (2 if item.unit == "tf32" else 1)
        fp32 += fp32_flops(item, gpu) / gpu.fp32_flops
    busy = min(1.0, union(_spans(work, outcome, "kernel")) / period)
    smact = GRACT_OF_BUSY * min(busy, sm / period)
    return Activity(
        gpu=busy,
        gract=GRACT_OF_BUSY * busy,
        smact=smact,
        smocc=min(smact, occupancy / period),
        tensor_active=min(1.0, tensor / period),
        fp32_active=min(1.0, fp32 / period),
        dram_active=min(1.0, dram / period),
    )


def _extreme(choose: Callable[[list[float]], float], each: Sequence[Activity], *, at: Literal[0, 1]) -> Activity:
    def end(name: str) -> float:
        value = ACTIVITY_SPREAD[name][at] * choose([getattr(one, name) for one in each])
        return min(1.0, max(0.0, value + (LEAST_SPREAD if at else -LEAST_SPREAD)))

    return Activity(**{f.name: end(f.name) for f in fields(Activity)})


def _timeline(work: Work, gpu: Gpu, outcome: Outcome) -> ActivityTimeline:
    period, begin = _period(work, outcome), outcome.played.begin
    bucket = period / NUM_BUCKETS
    busy, sm, dram = ([0.0] * NUM_BUCKETS for _ in range(3))
    classes: dict[str, list[float]] = defaultdict(lambda: [0.0] * NUM_BUCKETS)
    ends: list[tuple[float, Phase]] = []
    for item, (first, last) in zip(work.items, outcome.played.spans, strict=True):
        if not item.launches:
            continue
        ends.append((last - begin, item.phase))
        is_kernel = item.kind == "kernel"
        rate = demand(item, gpu).byte_seconds / (last - first) if is_kernel and last > first else 0.0
        active = sm_active(item, gpu) if is_kernel else 0.0
        at = max(0, int((first - begin) / bucket))
        while at < NUM_BUCKETS and begin + at * bucket < last:
            inside = min(last, begin + (at + 1) * bucket) - max(first, begin + at * bucket)
            busy[at] += inside if is_kernel else 0.0
            classes[_class(item)][at] += inside
            sm[at] += inside * active
            dram[at] += inside * rate
            at += 1
    ends.sort()
    times = [time for time, _ in ends]
    phases = [ends[min(bisect_right(times, at * bucket), len(ends) - 1)][1] for at in range(NUM_BUCKETS)]

    def shares(column: list[float]) -> tuple[float, ...]:
        return tuple(min(1.0, value / bucket) for value in column)

    # Kernels on several streams run at the same time: what is shown of them adds up to the whole.
    crowd = [max(1.0, sum(each) / bucket) for each in zip(*classes.values(), strict=True)]
    in_order = sorted(classes, key=lambda name: -sum(classes[name]))
    return ActivityTimeline(
        bucket_ms=1e3 * bucket, gract=shares(busy), smact=shares(sm), dram_active=shares(dram), phase=tuple(phases),
        kernels=tuple(
            (name, shares([each / most for each, most in zip(classes[name], crowd, strict=True)])) for name in in_order
        ),
        waits=_waits(work, outcome, shortest=bucket),
    )  # fmt: skip


def _class(item: Item) -> str:
    """As it is shown: one for both layouts, and for all gradients of convolutions."""
    return "copy" if item.kind == "copy" else item.kernel_class.removesuffix("_nhwc").removesuffix("_weights")


def _waits(work: Work, outcome: Outcome, *, shortest: float) -> tuple[Wait, ...]:
    begin, period = outcome.played.begin, _period(work, outcome)
    runs = [(span, item) for span, item in zip(outcome.played.spans, work.items, strict=True) if item.launches]
    found: list[Wait] = []
    until = begin
    phase: Phase = "other"

    def note(end: float, before: str | None) -> None:
        if end - until >= shortest:
            found.append(Wait(begin_ms=1e3 * (until - begin), ms=1e3 * (end - until), before=before, phase=phase))

    for (first, last), item in sorted(runs, key=lambda run: run[0]):
        phase = item.phase
        note(first, item.name or None)
        until = max(until, last)
    phase = "other"
    note(begin + period, None)
    return tuple(sorted(found, key=lambda wait: -wait.ms)[:NUM_WAITS])


# --- who takes the time -----------------------------------------------------------------------------------------------


def _kernel_seconds(work: Work, outcome: Outcome) -> list[tuple[Item, float]]:
    return [(item, took) for item, took in zip(work.items, outcome.durations, strict=True) if item.kind == "kernel"]


def _share(work: Work, gpu: Gpu, shares: Constants, is_meant: Callable[[Item], bool]) -> float:
    """Of the kernels' time."""
    took = [(item, seconds(item, gpu, shares)) for item in work.items if item.kind == "kernel"]
    total = sum(each for _, each in took)
    return sum(each for item, each in took if is_meant(item)) / total if total else 0.0


def _has_modules(work: Work) -> bool:
    return any(item.module for item in work.items)


def _pattern(module: str | None) -> str:
    """Layers with numbers are one: `layers.*.mlp`."""
    return _NUMBERS.sub(".*", module) if module else "(outside modules)"


def _grouped(
    work: Work, gpu: Gpu, kernels: Sequence[tuple[Item, float]], key: Callable[[Item], str]
) -> tuple[KernelTime, ...]:
    groups: dict[str, list[tuple[Item, float]]] = defaultdict(list)
    for item, took in kernels:
        groups[key(item)].append((item, took))
    total = sum(took for _, took in kernels) or 1.0
    return tuple(
        sorted((_kernel_time(name, own, gpu, total) for name, own in groups.items()), key=lambda each: -each.ms)
    )


def _kernel_time(name: str, own: Sequence[tuple[Item, float]], gpu: Gpu, total: float) -> KernelTime:
    took = sum(each for _, each in own)
    needs = [demand(item, gpu) for item, _ in own]
    modules: dict[str, float] = defaultdict(float)
    for item, each in own:
        if item.module:
            modules[_pattern(item.module)] += each
    return KernelTime(
        name=name,
        ms=1e3 * took,
        share=took / total,
        of_peak=min(1.0, sum(need.flop_seconds for need in needs) / took) if took else 0.0,
        of_bandwidth=min(1.0, sum(need.byte_seconds for need in needs) / took) if took else 0.0,
        module=max(modules, key=lambda each: modules[each]) if modules else None,
    )
