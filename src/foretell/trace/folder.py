"""Turns the capture folder (docs/architecture.md) into a `Trace`. What a killed process left counts too."""

from __future__ import annotations

import json
import marshal
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import compress
from pathlib import Path
from typing import Any

from foretell.records import CaptureResult, OutOfMemory
from foretell.trace.owners import History, read_owners
from foretell.trace.records import (
    ACTIONS,
    PHASES,
    AllocatorSettings,
    Counted,
    DeviceMemory,
    DriverEvents,
    Keeper,
    KernelLaunches,
    LibraryCalls,
    MissingFunction,
    OomMark,
    ScriptException,
    StepMark,
    Trace,
    Unsupported,
)
from foretell.units import parse_bytes

_ACTION_CODES = {action: code for code, action in enumerate(ACTIONS)}
# Native records: 64 bytes, `<QIIqqqqqq`.
_RECORD_BYTES = 64
_ALLOCATION, _FREE, _LAUNCH, _LIBRARY, _UNIMPLEMENTED, _UNKNOWN_READ, _OUT_OF_MEMORY, _STATIC_RUNTIME, _WORKSPACE = (
    range(1, 10)
)


def from_capture(result: CaptureResult) -> Trace:
    """Reads the capture folder; if several processes used the GPU, the one that held the most."""
    journals = {_pid_of(path): _read_journal(path) for path in sorted(result.directory.glob("journal-*.jsonl"))}
    pids = set(journals) | {_pid_of(path) for path in result.directory.glob("native-*.bin")}
    native = {pid: _read_native(result.directory, pid) for pid in sorted(pids)}
    on_gpu = [pid for pid in sorted(pids) if _uses_gpu(journals.get(pid, []), native[pid].driver)]
    pid = max(on_gpu, key=lambda p: _peak_reserved(journals.get(p, []), native[p].driver), default=None)
    if pid is None:
        # The first process is the one the user started; it tells which torch it had, if any.
        pid = min(journals, key=lambda p: _time_of(journals[p]), default=None)
    others = [line for p, lines in journals.items() if p != pid for line in lines]
    # A process that only asks what the card is (a compile worker) takes none of its memory.
    num_gpu_processes = sum(_peak_reserved(journals.get(p, []), native[p].driver) > 0 for p in on_gpu)
    return _assemble(result, pid, journals.get(pid, []) if pid else [], others, native, num_gpu_processes)


def _pid_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _read_journal(path: Path) -> list[dict[str, Any]]:
    """A killed process may leave half a line at the end; nothing before it is lost."""
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("kind"), str):
            lines.append(line)
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Native:
    names: tuple[str, ...] = ()
    driver: DriverEvents = field(default_factory=DriverEvents)
    kernels: KernelLaunches = field(default_factory=KernelLaunches)
    library: LibraryCalls = field(default_factory=LibraryCalls)
    unimplemented: tuple[str, ...] = ()
    static_runtimes: tuple[str, ...] = ()
    num_unknown_reads: int = 0
    workspaces: tuple[tuple[int, int, int, int], ...] = ()
    """Given to a library: time_us, address, bytes, device."""


def _read_native(directory: Path, pid: int) -> _Native:
    try:
        raw = (directory / f"native-{pid}.bin").read_bytes()
    except FileNotFoundError:
        return _Native()
    raw = raw[: len(raw) // _RECORD_BYTES * _RECORD_BYTES]
    names_path = directory / f"native-{pid}.names"
    names = tuple(names_path.read_text(errors="replace").splitlines()) if names_path.exists() else ()
    words, halves = array("q"), array("I")
    words.frombytes(raw)
    halves.frombytes(raw)
    if sys.byteorder == "big":
        words.byteswap()
        halves.byteswap()
    kinds, name = halves[2::16], halves[3::16]
    column = [words[0::8], *(words[2 + i :: 8] for i in range(6))]  # time, a0 ... a5

    def rows(*wanted: int) -> list[bool]:
        return [kind in wanted for kind in kinds]

    moved, launched, called = rows(_ALLOCATION, _FREE), rows(_LAUNCH), rows(_LIBRARY)
    return _Native(
        names=names,
        driver=DriverEvents(
            time_us=array("q", compress(column[0], moved)),
            is_free=array("B", (kind == _FREE for kind in compress(kinds, moved))),
            name=array("I", compress(name, moved)),
            address=array("Q", compress(column[1], moved)),
            size=array("q", compress(column[2], moved)),
            device=array("q", compress(column[3], moved)),
            in_use=array("q", compress(column[4], moved)),
        ),
        kernels=KernelLaunches(
            time_us=array("q", compress(column[0], launched)),
            name=array("I", compress(name, launched)),
            grid_x=array("q", compress(column[1], launched)),
            grid_y=array("q", compress(column[2], launched)),
            grid_z=array("q", compress(column[3], launched)),
            block=array("q", compress(column[4], launched)),
            shared_bytes=array("q", compress(column[5], launched)),
            place=array("q", compress(column[6], launched)),
        ),
        library=LibraryCalls(
            time_us=array("q", compress(column[0], called)),
            name=array("I", compress(name, called)),
            workspace_bytes=array("q", compress(column[1], called)),
            argument_1=array("q", compress(column[2], called)),
            argument_2=array("q", compress(column[3], called)),
            argument_3=array("q", compress(column[4], called)),
            argument_4=array("q", compress(column[5], called)),
            argument_5=array("q", compress(column[6], called)),
        ),
        unimplemented=tuple(names[i] for i in compress(name, rows(_UNIMPLEMENTED)) if i < len(names)),
        static_runtimes=tuple(names[i] for i in compress(name, rows(_STATIC_RUNTIME)) if i < len(names)),
        num_unknown_reads=sum(rows(_UNKNOWN_READ)),
        workspaces=tuple(compress(zip(*column[:4], strict=True), rows(_WORKSPACE))),
    )


def _uses_gpu(lines: list[dict[str, Any]], driver: DriverEvents) -> bool:
    return (
        len(driver.time_us) > 0
        or any(line["kind"] in ("cuda", "step") and _devices(line) for line in lines)
        or any(line["kind"] == "cuda" for line in lines)
    )


def _peak_reserved(lines: list[dict[str, Any]], driver: DriverEvents) -> int:
    counted = (d.peak_reserved_bytes for line in lines for d in _devices(line))
    return max(max(counted, default=0), max(driver.in_use, default=0))


def _time_of(lines: list[dict[str, Any]]) -> int:
    return min((int(line.get("time_us", 0)) for line in lines), default=0)


def _devices(line: dict[str, Any]) -> tuple[DeviceMemory, ...]:
    names = [f.name for f in fields(DeviceMemory)]
    return tuple(DeviceMemory(**{name: int(device[name]) for name in names}) for device in line.get("devices") or ())


def _assemble(
    result: CaptureResult,
    pid: int | None,
    lines: list[dict[str, Any]],
    others: list[dict[str, Any]],
    native: dict[int, _Native],
    num_gpu_processes: int,
) -> Trace:
    def of(kind: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["kind"] == kind]

    def anywhere(kind: str) -> list[dict[str, Any]]:
        return of(kind) + [line for line in others if line["kind"] == kind]

    own = native[pid] if pid is not None else _Native()
    history = _read_history(result.directory, pid)
    owners = read_owners(result.directory, pid, history, own.workspaces)
    torch = (anywhere("torch") or [{}])[0]
    ends = of("end")
    counted = [line for line in lines if line.get("devices")]
    seconds = {"total": result.seconds, "script": result.seconds}
    if ends:
        seconds.update({name: float(value) for name, value in (ends[-1].get("seconds") or {}).items()})
    phases = {line.get("phase") for line in of("phase")} | set(ends[-1].get("phases") or () if ends else ())
    unknown: Counter[tuple[str, str | None]] = Counter()
    for line in anywhere("unknown_read"):
        unknown[str(line.get("what") or "a value"), line.get("where")] += int(line.get("count") or 1)
    if not lines and own.num_unknown_reads:
        # The Python side knows which reads matter (a saved checkpoint's do not); without it, all of them count.
        unknown["a value", None] = own.num_unknown_reads
    exceptions = anywhere("exception")
    return Trace(
        command=result.command,
        gpu=result.gpu,
        context_bytes=result.context_bytes,
        is_context_given=result.is_context_given,
        libraries=result.libraries,
        used_by_others_bytes=result.used_by_others_bytes,
        exit_status=result.exit_status,
        is_timed_out=result.is_timed_out,
        seconds=seconds,
        python_version=_optional((anywhere("process") or [{}])[0].get("python")),
        torch_version=_optional(torch.get("version")),
        cuda_version=_optional(torch.get("cuda")),
        cudnn_version=torch.get("cudnn") or (anywhere("cudnn") or [{}])[0].get("version"),
        arch_list=tuple((anywhere("cuda") or [{}])[0].get("arch_list") or ()),
        pid=pid,
        num_gpu_processes=num_gpu_processes,
        allocator=AllocatorSettings.of_environment(_optional(torch.get("version")), result.variables),
        phases_seen=tuple(phase for phase in PHASES if phase in phases),
        steps=tuple(
            StepMark(index=int(line["index"]), time_us=int(line["time_us"]), devices=_devices(line))
            for line in of("step")
        ),
        final=_devices(counted[-1]) if counted else (),
        is_ended=bool(ends),
        ooms=tuple(OomMark(time_us=int(line["time_us"]), oom=_oom(line)) for line in of("oom")),
        exception=_exception(exceptions[-1]) if exceptions else None,
        unknown_reads=_counted(unknown),
        unimplemented=_missing_functions(anywhere("unimplemented"), native.values()),
        unsupported=tuple(
            Unsupported(what=str(line.get("what")), hint=str(line.get("hint") or ""))
            for line in anywhere("unsupported")
        )
        + _static_runtimes(native.values()),
        redirected_writes=_distinct(line.get("path") for line in anywhere("redirected_write")),
        not_sent=_distinct(line.get("what") for line in anywhere("not_sent")),
        ended_early=_distinct(_early_end(line) for line in anywhere("ended_early")),
        caveats=_distinct(line.get("text") for line in anywhere("caveat")),
        names=own.names,
        frames=tuple(history.frames),
        stacks=tuple(history.stacks),
        memory=history.events,
        labels=owners.labels,
        spans=owners.spans,
        owners=tuple(owners.names),
        driver=own.driver,
        kernels=own.kernels,
        library=own.library,
        keepers=tuple(
            Keeper(name=str(line.get("name")), what=str(line.get("what")), where=str(line.get("where")))
            for line in of("keeper")
        ),
        engine="cpu" if torch.get("engine") == "cpu" else "virtual",
    )


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _distinct(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(value) for value in values if value))


def _counted(counter: Counter[tuple[str, str | None]]) -> tuple[Counted, ...]:
    return tuple(Counted(what=what, where=where, count=count) for (what, where), count in counter.most_common())


def _missing_functions(lines: list[dict[str, Any]], native: Iterable[_Native]) -> tuple[MissingFunction, ...]:
    """The journal knows the operator and the line; a process without the hooks leaves the name alone."""
    missing = {
        name: MissingFunction(name=name, operator=None, where=None) for each in native for name in each.unimplemented
    }
    for line in lines:
        name = str(line.get("name"))
        missing[name] = MissingFunction(
            name=name, operator=_optional(line.get("operator")), where=_optional(line.get("where"))
        )
    return tuple(missing.values())


def _static_runtimes(native: Iterable[_Native]) -> tuple[Unsupported, ...]:
    files = dict.fromkeys(file for each in native for file in each.static_runtimes)
    return tuple(
        Unsupported(
            what=f"{Path(file).name} brings its own copy of the CUDA runtime, which the virtual GPU cannot serve",
            hint=f"It is {file}. Build it with the shared one (nvcc's --cudart shared), or open an issue with foretell",
        )
        for file in files
    )


def _early_end(line: dict[str, Any]) -> str:
    what, steps = str(line.get("what") or line.get("how")), int(line.get("step") or 0)
    return what if "after" in what else f"{what}, after {steps} {'step' if steps == 1 else 'steps'}"


def _oom(line: dict[str, Any]) -> OutOfMemory:
    phase = line.get("phase")
    return OutOfMemory(
        step=int(line.get("step") or 0),
        phase=phase if phase in PHASES else "other",
        requested_bytes=int(line.get("requested_bytes") or 0) or _tried_to_allocate(str(line.get("message"))),
        message=str(line.get("message") or "CUDA out of memory."),
        where=_optional(line.get("where")),
    )


def _tried_to_allocate(message: str) -> int:
    """From PyTorch's words, which round: `Tried to allocate 2.50 GiB.`"""
    match = re.search(r"Tried to allocate ([0-9.]+ [KMG]?i?B|[0-9]+ bytes)", message)
    return parse_bytes(match[1].replace(" bytes", "")) if match else 0


def _exception(line: dict[str, Any]) -> ScriptException:
    return ScriptException(
        type=str(line.get("type")),
        message=str(line.get("message") or ""),
        where=_optional(line.get("where")),
        is_oom=bool(line.get("is_oom")),
    )


def _read_history(directory: Path, pid: int | None) -> History:
    """Joins the windows of one process; each has its own numbers for stacks and frames."""
    history = History()
    events, frames, stacks = history.events, history.frames, history.stacks
    windows = sorted(directory.glob(f"history-{pid}-*.marshal"), key=lambda path: int(path.stem.split("-")[2]))
    for path in windows:
        try:
            window = marshal.loads(path.read_bytes())
        except (EOFError, ValueError, TypeError):
            break  # the process died while writing; what follows would not add up
        frame_base, stack_base = len(frames), len(stacks)
        frames.extend((str(file), int(line), str(function)) for file, line, function in window["frames"])
        stacks.extend(tuple(frame + frame_base for frame in stack) for stack in window["stacks"])
        device = int(window["device"])
        if not window["entries"]:
            continue
        action, address, size, stream, time_us, stack = zip(*window["entries"], strict=True)
        events.action.extend(_ACTION_CODES.get(name, _ACTION_CODES["user_defined"]) for name in action)
        events.address.extend(a & (1 << 64) - 1 for a in address)
        events.size.extend(size)
        events.stream.extend(s & (1 << 64) - 1 for s in stream)
        events.time_us.extend(time_us)
        events.device.extend([device] * len(action))
        events.stack.extend(-1 if s is None or s < 0 else s + stack_base for s in stack)
    return history
