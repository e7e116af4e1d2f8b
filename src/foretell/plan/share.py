"""Several jobs on one card: do they fit together, which pairs go well, and how fast will each run beside the others."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from foretell import api, disk, gpus
from foretell.analysis.verdict import estimate_of
from foretell.errors import ForetellError, TraceError, UnsupportedError, UsageError
from foretell.plan.fit import with_context
from foretell.plan.slices import assign
from foretell.plan.variants import recorded_briefly
from foretell.records import Estimate, Gpu
from foretell.report import json as json_report
from foretell.rules.capacity import Grade, SideBySide, side_by_side
from foretell.rules.sharing import Load, Speed, speeds
from foretell.runs import Progress
from foretell.time import performance
from foretell.trace import Trace, load
from foretell.units import parse_bytes

SCHEMA = "foretell.share/1"
_LARGEST_JSON = 256 << 20
Mode = Literal["time-slicing", "mps", "mig"]
"""How a card is shared: processes take turns, each with its own CUDA context; MPS, one context for all; MIG, each job
has a slice of the card."""
MODES: tuple[Mode, ...] = ("time-slicing", "mps", "mig")
Busy = Load | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """One of the jobs, on the card."""

    name: str
    device_bytes: int
    request_bytes: int
    contexts_bytes: int
    """Of both: the CUDA contexts of its processes."""
    load: Load | None
    """None: not known."""
    slice: Gpu | None = None
    """With MIG: where it runs."""
    speed: Speed | None = None
    """Beside all the others; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two of the jobs alone on the card, by their numbers."""

    first: int
    second: int
    grade: Grade
    spare_bytes: int | None
    """What is left after both requests; None with MIG, where each has its own."""
    speeds: tuple[Speed, Speed] | None

    @property
    def throughput(self) -> float:
        """Of both together, relative to one of them alone; 0 if not known or if they do not fit."""
        return 0.0 if self.speeds is None or self.grade == "oom" else sum(speed.expected for speed in self.speeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    gpu: Gpu
    mode: Mode
    jobs: tuple[Sharer, ...]
    grade: Grade
    """Of all jobs together; tight: they fit as estimated, but not with what should be requested for each."""
    memory: SideBySide
    pairs: tuple[Pair, ...] = ()
    """The best first; empty if there are only two jobs."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(self.document(), indent=2)

    def document(self) -> dict[str, Any]:
        is_mig = self.mode == "mig"
        return {
            "schema": SCHEMA,
            "gpu": {"name": self.gpu.name, "total_bytes": self.gpu.total_bytes},
            "mode": self.mode,
            "verdict": self.grade,
            "device_bytes": self.memory.device_bytes,
            "request_bytes": self.memory.request_bytes,
            "spare_bytes": None if is_mig else self.memory.spare_bytes,
            "jobs": [_document(job) for job in self.jobs],
            "pairs": [asdict(pair) for pair in self.pairs],
            "notes": list(self.notes),
        }


def _document(job: Sharer) -> dict[str, Any]:
    return {
        "name": job.name,
        "device_bytes": job.device_bytes,
        "request_bytes": job.request_bytes,
        "slice": None if job.slice is None else job.slice.name,
        "utilization": None if job.load is None else asdict(job.load),
        "speed": None if job.speed is None else asdict(job.speed),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A job as it was given, on the card it was estimated for."""

    name: str
    estimate: Estimate
    load: Load | None
    """On that card."""
    is_load_given: bool = False
    trace: Trace | None = None
    """If there is one: how busy another card would be follows from it."""


def share(
    jobs: Sequence[str | Path | Sequence[str] | Estimate],
    *,
    gpu: str | Gpu | None = None,
    mode: Mode = "time-slicing",
    busy: Sequence[Busy] = (),
    context: str | int | None = None,
    used_by_others: str | int = 0,
    say: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Share:
    """Find out whether jobs can share a GPU. Each is a file (a trace, or the JSON of an estimate), a command (a list of
    words, which is run on the GPU), or an `Estimate`.

    `gpu` may be left out if all were estimated for the same one. `busy` has, for each job in turn, how busy it keeps
    the GPU alone: "97/62", the GPU and memory utilization of nvidia-smi in percent; None: as estimated, if it was.
    `options` are those of `foretell.estimate`, for commands.
    """
    if len(jobs) < 2:
        raise UsageError("one job has the GPU for itself: give two or more. The same may be given twice.")
    if mode not in MODES:
        raise UsageError(f"--mode {mode}: must be one of {', '.join(MODES)}.")
    if busy and len(busy) != len(jobs):
        raise UsageError(f"--busy has {len(busy)} entries for {len(jobs)} jobs. Give one for each, - if not known.")
    loads = [_load_of_text(each) if isinstance(each, str) else each for each in busy] or [None] * len(jobs)
    card = gpus.find(gpu) if isinstance(gpu, str) else gpu
    if card is None and any(_is_command(job) for job in jobs):
        raise UsageError("a script needs to know the GPU: give --gpu NAME.")
    context_bytes = parse_bytes(context) if isinstance(context, str) else context
    others = parse_bytes(used_by_others) if isinstance(used_by_others, str) else used_by_others
    runs = {"gpu": card, "context": context_bytes, **options}
    known: dict[str, _Found] = {}
    found = []
    for number, job in enumerate(jobs):
        key = str(job) if not isinstance(job, Estimate) else str(number)
        if key not in known:
            known[key] = _read(job, f"job {number + 1}", runs, say, on_progress)
        found.append(known[key])
    cards = {each.estimate.gpu.name: each.estimate.gpu for each in found}
    if card is None and len(cards) > 1:
        raise UsageError(f"the jobs were estimated for {', '.join(cards)}: say which GPU they share with --gpu NAME.")
    given = [
        each if own is None else replace(each, load=own, is_load_given=True)
        for each, own in zip(found, loads, strict=True)
    ]
    return judge(
        given, card or next(iter(cards.values())), mode=mode, context_bytes=context_bytes, used_by_others_bytes=others
    )


# --- what is given ----------------------------------------------------------------------------------------------------


def _is_command(job: object) -> bool:
    return not isinstance(job, (str, Path, Estimate))


def _read(
    job: str | Path | Sequence[str] | Estimate,
    name: str,
    runs: Mapping[str, Any],
    say: Callable[[str], None],
    on_progress: Callable[[Progress], None] | None,
) -> _Found:
    if isinstance(job, Estimate):
        name, estimate = " ".join(job.command) or name, job
    elif isinstance(job, (str, Path)):
        return _of_file(Path(job))
    else:
        name = " ".join(job)
        say(f"running {name}")
        made = recorded_briefly(api.make_job(list(job), **runs))
        timed = replace(made, options=replace(made.options, time=True))
        done = api.follow_up(api.run(timed, on_progress=on_progress), on_progress=on_progress)
        estimate = done.complete_estimate
    return _Found(name=name, estimate=estimate, load=_load_of(json_report.document(estimate)))


def _of_file(path: Path) -> _Found:
    wanted = "Give a file written by `foretell run --trace` or `--json`, or a script."
    trace = None
    try:
        with disk.opened(path) as file:
            is_trace = file.read(2) == b"PK"
        if is_trace:
            trace = load(path)
            estimate = estimate_of(trace, attributes=False)
            document = json_report.document(estimate)
        else:
            text = disk.read(path, most_bytes=_LARGEST_JSON).decode()
            document, estimate = json_report.parse(text, name=str(path)), json_report.read(text)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}. {wanted}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not text. {wanted}") from None
    except ForetellError as error:
        raise type(error)(f"{path}: {error}") if not isinstance(error, TraceError) else error from None
    if estimate.ended_by is not None and not estimate.has_verdict:
        raise UnsupportedError(f"{path}: the run is incomplete: {estimate.ended_by.message}")
    return _Found(name=str(path), estimate=estimate, load=_load_of(document), trace=trace)


def _load_of(document: Mapping[str, Any]) -> Load | None:
    """From the utilization of an estimate, if it has one. The model was fitted on what nvidia-smi shows, which counts a
    little more than DCGM's GRACT."""
    utilization = document.get("utilization")
    if not isinstance(utilization, dict):
        return None
    values = [utilization.get("gpu", utilization.get("gract")), utilization.get("dram_active")]
    if not all(isinstance(value, (int, float)) and 0 <= value <= 1 for value in values):
        return None
    return Load(*map(float, values))  # type: ignore[arg-type]


def _load_of_text(text: str) -> Load | None:
    """`97/62`, in percent; `-`: not known."""
    if text.strip() in ("-", ""):
        return None
    try:
        gpu, memory = (float(word) / 100 for word in text.split("/"))
        return Load(gpu, memory)
    except (ValueError, AssertionError):
        raise UsageError(
            f"--busy {text}: must be GPU/MEMORY utilization in percent, as nvidia-smi shows it: 97/62; - if not known."
        ) from None


# --- the verdict ------------------------------------------------------------------------------------------------------


def judge(
    found: Sequence[_Found], gpu: Gpu, *, mode: Mode, context_bytes: int | None, used_by_others_bytes: int
) -> Share:
    found = [replace(each, load=_load_on(each, gpu)) for each in found] if mode != "mig" else found
    jobs = tuple(_on_card(each, gpu, context_bytes) for each in found)
    together = _together(jobs, gpu, mode, used_by_others_bytes)
    pairs: list[Pair] = []
    if len(jobs) > 2:
        for first, second in itertools.combinations(range(len(jobs)), 2):
            both = _together((jobs[first], jobs[second]), gpu, mode, used_by_others_bytes)
            known = [job.speed for job in both.jobs if job.speed is not None]
            pairs.append(
                Pair(
                    first=first, second=second, grade=both.grade,
                    spare_bytes=None if mode == "mig" else both.memory.spare_bytes,
                    speeds=(known[0], known[1]) if len(known) == 2 else None,
                )
            )  # fmt: skip
        order: tuple[Grade, ...] = ("fits", "tight", "oom")
        pairs.sort(key=lambda pair: (order.index(pair.grade), -pair.throughput, -(pair.spare_bytes or 0)))
    return replace(together, pairs=tuple(pairs), notes=tuple(_notes(found, jobs, gpu, mode)))


def _load_on(found: _Found, gpu: Gpu) -> Load | None:
    """How busy it keeps this card, which need not be the one it was estimated for."""
    if found.is_load_given or found.estimate.gpu.name == gpu.name:
        return found.load
    if found.trace is None:
        return None
    there = performance(found.trace, gpu, host_factor=found.trace.host_factor)
    return None if there is None else Load(there.activity.gpu, there.activity.dram_active)


def _on_card(found: _Found, gpu: Gpu, context_bytes: int | None) -> Sharer:
    estimate = found.estimate
    own = estimate.peak.context_bytes
    there = context_bytes if context_bytes is not None else own if estimate.is_context_given else gpu.context_bytes
    num_processes = estimate.together.num_processes if estimate.together else 1
    if estimate.verdict == "oom":
        need = estimate.need
        if need is None:
            raise UnsupportedError(f"{found.name}: it ran out of memory, and what it needs is not known.")
        more = num_processes * (there - own)
        device_bytes, request_bytes = need.device_bytes + more, need.request_bytes + more
    else:
        moved = with_context(estimate, there - own)
        device_bytes, request_bytes = moved.device_bytes, moved.request_bytes
    return Sharer(
        name=found.name, device_bytes=device_bytes, request_bytes=max(device_bytes, request_bytes),
        contexts_bytes=num_processes * there, load=found.load,
    )  # fmt: skip


def _together(jobs: Sequence[Sharer], gpu: Gpu, mode: Mode, used_by_others_bytes: int) -> Share:
    needs = [(job.device_bytes, job.request_bytes, job.contexts_bytes) for job in jobs]
    memory = side_by_side(gpu, needs, shares_context=mode == "mps", used_by_others_bytes=used_by_others_bytes)
    if mode == "mig":
        return _in_slices(jobs, gpu, memory)
    loads = [job.load for job in jobs if job.load is not None]
    beside: list[Speed | None] = [None] * len(jobs)
    if len(loads) == len(jobs):
        beside = list(speeds(loads))
    placed = tuple(replace(job, speed=speed) for job, speed in zip(jobs, beside, strict=True))
    return Share(gpu=gpu, mode=mode, jobs=placed, grade=memory.grade, memory=memory)


def _in_slices(jobs: Sequence[Sharer], gpu: Gpu, memory: SideBySide) -> Share:
    """Each in a slice that has its request, or at least its need. How fast it is there depends on the SMs of the slice
    alone, and is not known."""
    grades: tuple[tuple[Grade, list[int]], ...] = (
        ("fits", [job.request_bytes for job in jobs]),
        ("tight", [job.device_bytes for job in jobs]),
    )
    for grade, needs in grades:
        slices = assign(gpu, needs)
        if slices is not None:
            placed = tuple(replace(job, slice=each) for job, each in zip(jobs, slices, strict=True))
            return Share(gpu=gpu, mode="mig", jobs=placed, grade=grade, memory=memory)
    return Share(gpu=gpu, mode="mig", jobs=tuple(jobs), grade="oom", memory=memory)


def _notes(found: Sequence[_Found], jobs: Sequence[Sharer], gpu: Gpu, mode: Mode) -> list[str]:
    notes = []
    elsewhere = {each.name: each.estimate.gpu.name for each in found if each.estimate.gpu.name != gpu.name}
    if elsewhere:
        named = ", ".join(f"{name} ({other})" for name, other in elsewhere.items())
        notes.append(
            f"estimated for another GPU: {named}. Kernels and workspaces may differ on {gpu.name}; run it with "
            f"--gpu {gpu.name} to be sure"
        )
    incomplete = [each.name for each in found if each.estimate.ended_by is not None]
    if incomplete:
        notes.append(f"incomplete runs, which may need more: {', '.join(incomplete)}")
    if mode == "mig":
        notes.append(
            "a job in a slice keeps the memory it needs on the whole card; its context is smaller there, and kernels "
            "may differ: run it with --gpu NAME:PROFILE to be sure"
        )
        return notes
    unknown = list(dict.fromkeys(job.name for job in jobs if job.load is None))
    if unknown:
        notes.append(
            f"memory only: how busy {', '.join(unknown)} {'keeps' if len(unknown) == 1 else 'keep'} the "
            "GPU is not known, so no speeds are given. `foretell run --time` estimates it; or give it as nvidia-smi "
            "shows it: --busy 97/62,45/20"
        )
    elif mode == "mps":
        notes.append("the speeds were fitted on processes that take turns; with MPS, kernels also run at the same time")
    return notes
