"""Reads the journals of a run, kind by kind (`protocol/journal.py`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from foretell.records import Engine, OutOfMemory, Phase, TensorShape
from foretell.trace.records import (
    PHASES,
    BatchMark,
    CommunicatorUse,
    CutLoop,
    DeviceMemory,
    Keeper,
    LoaderPass,
    MissingFunction,
    OomMark,
    RankMark,
    ScriptException,
    StepMark,
    Unsupported,
)
from foretell.units import parse_bytes

Line = dict[str, Any]


@dataclass(slots=True)
class Told:
    """Journal contents of the reported process; some kinds also from the other processes of the run, after its own."""

    python_version: str | None = None
    library_folders: tuple[str, ...] = ()
    own_folders: tuple[str, ...] = ()
    torch_version: str | None = None
    cuda_version: str | None = None
    cudnn_version: int | None = None
    engine: Engine = "virtual"
    rank: RankMark | None = None
    arch_list: tuple[str, ...] | None = None
    cublas_workspace_config: str | None = None
    card_queries: dict[str, None] = field(default_factory=dict)
    allocators: list[tuple[int, str, str]] = field(default_factory=list)
    """time_us, settings, backend."""
    seconds: dict[str, float] = field(default_factory=dict)
    phases: set[str] = field(default_factory=set)
    steps: list[StepMark] = field(default_factory=list)
    final: tuple[DeviceMemory, ...] = ()
    is_ended: bool = False
    ooms: list[OomMark] = field(default_factory=list)
    phases_since_oom: set[str] = field(default_factory=set)
    exception: ScriptException | None = None
    unknown_reads: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    unimplemented: dict[str, MissingFunction] = field(default_factory=dict)
    unsupported: list[Unsupported] = field(default_factory=list)
    redirected_writes: dict[str, None] = field(default_factory=dict)
    not_sent: dict[str, None] = field(default_factory=dict)
    ended_early: dict[str, None] = field(default_factory=dict)
    is_cut_short: bool = False
    cut_loops: list[CutLoop] = field(default_factory=list)
    endless_loop: str | None = None
    caveats: dict[str, None] = field(default_factory=dict)
    keepers: list[Keeper] = field(default_factory=list)
    loaders: dict[int, LoaderPass] = field(default_factory=dict)
    batches: list[BatchMark] = field(default_factory=list)
    """Those of a known pass and shape."""
    batch_shapes: dict[int, tuple[TensorShape, ...]] = field(default_factory=dict)

    @property
    def phases_seen(self) -> tuple[Phase, ...]:
        return tuple(phase for phase in PHASES if phase in self.phases)


DAMAGED = (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, TypeError, ValueError)
"""What reading a file raises that a killed process, or a full disk, has left half written."""


def whole_lines(lines: list[Line]) -> list[Line]:
    """Without damaged ones; half a line is not JSON, and not among them."""
    return [line for line in lines if _is_whole(line)]


def _is_whole(line: Line) -> bool:
    try:
        int(line.get("time_us", 0))
        devices_of(line)
        if line["kind"] in _READERS:
            _READERS[line["kind"]](Told(), line)
    except DAMAGED:
        return False
    return True


def read_lines(lines: list[Line], others: list[Line]) -> Told:
    """`lines`: of the reported process; `others`: of all other processes of the run."""
    told = Told()
    for line in lines:
        if line["kind"] in _READERS:
            _READERS[line["kind"]](told, line)
    has_raised = told.exception is not None
    for line in others:
        if line["kind"] in _ANY_PROCESS and not (has_raised and line["kind"] == "exception"):
            _READERS[line["kind"]](told, line)
    return told


def devices_of(line: Line) -> tuple[DeviceMemory, ...]:
    """PyTorch's counters. Raises one of DAMAGED."""
    found = tuple(
        DeviceMemory(**{name: int(device[name]) for name in _COUNTERS}) for device in line.get("devices") or ()
    )
    for each in found:
        each.check()
    return found


_COUNTERS = tuple(f.name for f in fields(DeviceMemory))

# --- one reader for each kind -----------------------------------------------------------------------------------------


def _process(told: Told, line: Line) -> None:
    if told.python_version is None:
        told.python_version = _optional(line.get("python"))
        told.library_folders = tuple(map(str, line.get("library_folders") or ()))
        told.own_folders = tuple(map(str, line.get("own_folders") or ()))


def _torch(told: Told, line: Line) -> None:
    if told.torch_version is None:
        told.torch_version = _optional(line.get("version"))
        told.cuda_version = _optional(line.get("cuda"))
        told.cudnn_version = int(line.get("cudnn") or 0) or told.cudnn_version
        told.engine = "cpu" if line.get("engine") == "cpu" else "virtual"


def _rank(told: Told, line: Line) -> None:
    told.rank = RankMark(
        rank=int(line["rank"]), world_size=int(line["world_size"]), local_rank=_number(line.get("local_rank")),
        gpus_per_node=_number(line.get("gpus_per_node")),
    )


def _cudnn(told: Told, line: Line) -> None:
    told.cudnn_version = told.cudnn_version or int(line["version"])


def _cuda(told: Told, line: Line) -> None:
    if told.arch_list is None:
        told.arch_list = tuple(map(str, line.get("arch_list") or ()))
        told.cublas_workspace_config = _optional(line.get("cublas_workspace_config"))


def _card_query(told: Told, line: Line) -> None:
    where = _optional(line.get("where"))
    _once(told.card_queries, f"{line.get('what')}, at {where}" if where else line.get("what"))


def _allocator(told: Told, line: Line) -> None:
    told.allocators.append((int(line["time_us"]), str(line.get("settings") or ""), str(line.get("backend"))))


def _phase(told: Told, line: Line) -> None:
    told.phases.add(str(line.get("phase")))
    told.phases_since_oom.add(str(line.get("phase")))
    if line.get("phase") == "backward" and told.batches:
        number = told.batches[-1].loader
        told.loaders[number] = replace(told.loaders[number], is_training=True)


def _step(told: Told, line: Line) -> None:
    devices = devices_of(line)
    told.steps.append(StepMark(index=int(line["index"]), time_us=int(line["time_us"]), devices=devices))
    told.final = devices or told.final


def _pass(told: Told, line: Line) -> None:
    told.loaders[int(line["number"])] = LoaderPass(
        length=_number(line.get("length")),
        num_samples=_number(line.get("num_samples")),
        batch_size=_number(line.get("batch_size")),
        sampler=str(line.get("sampler")),
        num_workers=int(line.get("num_workers") or 0),
    )


def _batch(told: Told, line: Line) -> None:
    if line.get("tensors") is not None:
        told.batch_shapes[int(line["shape"])] = tuple(
            TensorShape(name=str(name), dtype=str(dtype), shape=tuple(map(int, shape)))
            for name, dtype, shape in line["tensors"]
        )
    batch = BatchMark(
        loader=int(line["loader"]),
        index=int(line["index"]),
        step=int(line["step"]),
        shape=int(line["shape"]),
        num_elements=int(line["num_elements"]),
        samples=tuple(map(int, line.get("samples") or ())),
        num_samples=int(line.get("num_samples") or 0),
        is_trained=bool(line.get("is_trained", True)),
        took_us=_number(line.get("took_us")),
        worker_us=_number(line.get("worker_us")),
    )
    if batch.loader in told.loaders and batch.shape in told.batch_shapes:
        told.batches.append(batch)


def _end(told: Told, line: Line) -> None:
    told.is_ended = True
    told.final = devices_of(line) or told.final
    told.phases.update(line.get("phases") or ())
    told.seconds.update({name: float(value) for name, value in (line.get("seconds") or {}).items()})


def _oom(told: Told, line: Line) -> None:
    phase = line.get("phase")
    oom = OutOfMemory(
        step=int(line.get("step") or 0),
        phase=phase if phase in PHASES else "other",
        requested_bytes=int(line.get("requested_bytes") or 0) or _tried_to_allocate(str(line.get("message"))),
        message=str(line.get("message") or "CUDA out of memory."),
        where=_optional(line.get("where")),
    )
    told.phases_since_oom.clear()
    told.ooms.append(OomMark(time_us=int(line["time_us"]), oom=oom))


def _exception(told: Told, line: Line) -> None:
    told.exception = ScriptException(
        type=str(line.get("type")),
        message=str(line.get("message") or ""),
        where=_optional(line.get("where")),
        is_oom=bool(line.get("is_oom")),
        network=_optional(line.get("network")),
        unreached=_optional(line.get("unreached")),
    )


def _unknown_read(told: Told, line: Line) -> None:
    told.unknown_reads[str(line.get("what") or "a value"), line.get("where")] += int(line.get("count") or 1)


def _unimplemented(told: Told, line: Line) -> None:
    name = str(line.get("name"))
    operator, where = _optional(line.get("operator")), _optional(line.get("where"))
    told.unimplemented[name] = MissingFunction(name=name, operator=operator, where=where)


def _unsupported(told: Told, line: Line) -> None:
    told.unsupported.append(Unsupported(what=str(line.get("what")), hint=str(line.get("hint") or "")))


def _redirected_write(told: Told, line: Line) -> None:
    _once(told.redirected_writes, line.get("path"))


def _not_sent(told: Told, line: Line) -> None:
    _once(told.not_sent, line.get("what"))


def _ended_early(told: Told, line: Line) -> None:
    told.is_cut_short = True
    if line.get("how") == "unknown_value":
        told.endless_loop = str(line.get("what"))
        return
    if (kind := line.get("loop")) in ("training", "evaluation"):
        seconds = line.get("remaining_seconds")
        remaining = float(seconds) if isinstance(seconds, (int, float)) else None
        told.cut_loops.append(CutLoop(kind=kind, remaining_seconds=remaining))
    what, steps = str(line.get("what") or line.get("how")), int(line.get("step") or 0)
    _once(told.ended_early, what if "after" in what else f"{what}, after {steps} {'step' if steps == 1 else 'steps'}")


def _caveat(told: Told, line: Line) -> None:
    _once(told.caveats, line.get("text"))


def _keeper(told: Told, line: Line) -> None:
    told.keepers.append(Keeper(name=str(line.get("name")), what=str(line.get("what")), where=str(line.get("where"))))


def _communicators(told: Told, line: Line) -> None:
    if told.rank is None:
        return
    found = tuple(
        CommunicatorUse(
            size=int(each["size"]),
            kinds=tuple(map(str, each["kinds"])),
            buffer_bytes=int(each["bytes"]),
            num_channels=int(each["channels"]),
            ranks=tuple(map(int, each["ranks"])),
            neighbours=tuple(map(int, each["neighbours"])),
        )
        for each in line["communicators"]
    )
    told.rank = replace(told.rank, communicators=found)


_READERS: dict[str, Callable[[Told, Line], None]] = {
    "process": _process,
    "torch": _torch,
    "rank": _rank,
    "communicators": _communicators,
    "cudnn": _cudnn,
    "cuda": _cuda,
    "card_query": _card_query,
    "allocator": _allocator,
    "phase": _phase,
    "step": _step,
    "pass": _pass,
    "batch": _batch,
    "end": _end,
    "oom": _oom,
    "exception": _exception,
    "unknown_read": _unknown_read,
    "unimplemented": _unimplemented,
    "unsupported": _unsupported,
    "redirected_write": _redirected_write,
    "not_sent": _not_sent,
    "ended_early": _ended_early,
    "caveat": _caveat,
    "keeper": _keeper,
}
"""Without `operators` and `rank_waits` (progress), and `survey`, `features`, `alternative` and `loader` (for advice and
plans); `rank_needed` is about another process."""
_ANY_PROCESS = frozenset(_READERS) - {
    "rank", "communicators", "allocator", "phase", "step", "pass", "batch", "end", "oom", "keeper",
}  # fmt: skip
"""Kinds that count from any process of the run."""


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def _once(found: dict[str, None], value: object) -> None:
    if value:
        found[str(value)] = None


def _tried_to_allocate(message: str) -> int:
    """From PyTorch's message, which rounds: `Tried to allocate 2.50 GiB.`"""
    match = re.search(r"Tried to allocate ([0-9.]+ [KMG]?i?B|[0-9]+ bytes)", message)
    return parse_bytes(match[1].replace(" bytes", "")) if match else 0
