"""The `Summary` of a trace or an estimate on disk, for comparison: its peaks, and the memory behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from foretell import disk
from foretell.errors import ScriptError, TraceError, UnsupportedError
from foretell.masking import mask_command
from foretell.plain import from_plain
from foretell.records import EndedBy, Estimate, OutsidePeak, StepPeak
from foretell.report.holders import LISTED, blocks_at_peak, by_category, by_module
from foretell.report.json import parse
from foretell.units import MIB

_WANTED = "Give a trace (`foretell run --trace FILE ...`) or an estimate (`foretell run --json FILE ...`)."
PEAKS = (
    "allocated_bytes", "fragmentation_bytes", "slack_bytes", "reserved_bytes", "library_bytes", "context_bytes",
    "device_bytes", "request_bytes",
)  # fmt: skip
_OF_ATTRIBUTION = ("fragmentation_bytes", "slack_bytes")
_MOST_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A block that was held at the peak."""

    bytes: int
    category: str
    name: str | None = None
    module: str | None = None
    operator: str | None = None
    phase: str = "other"
    where: str | None = None
    """`file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Facts about one run for comparison. None: not in the file."""

    path: str
    verdict: str
    engine: str
    gpu: str
    torch: str
    cuda: str | None
    foretell: str | None = None
    command: tuple[str, ...]
    peaks: dict[str, int]
    """By name, as far as available; see PEAKS."""
    steps: tuple[StepPeak, ...]
    outside_steps: tuple[OutsidePeak, ...] | None = None
    oom_step: int | None
    categories: dict[str, int] | None
    modules: dict[str | None, int] | None
    modules_floor_bytes: int = 0
    """Upper bound for a module not in `modules`; 0: the list is complete."""
    blocks: tuple[Held, ...] | None
    blocks_floor_bytes: int = 0
    """Blocks up to this size may be missing; 0: the list is complete."""


def summary_of(path: Path) -> Summary:
    """Read and validate a file."""
    try:
        with disk.opened(path) as file:
            is_zip = file.read(2) == b"PK"
        return _of_trace(path) if is_zip else _of_document(_document(path), path)
    except FileNotFoundError:
        raise TraceError(f"no such file: {path}. {_WANTED}") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}. {_WANTED}") from None


# --- of a trace -------------------------------------------------------------------------------------------------------


def _of_trace(path: Path) -> Summary:
    from foretell.analysis.verdict import estimate_of
    from foretell.trace import load

    try:
        estimate = estimate_of(load(path))
    except (ScriptError, UnsupportedError) as error:
        raise UnsupportedError(f"{path}: the run has no estimate: {error}") from None
    if estimate.ended_by is not None:
        _refuse_incomplete(path, estimate.ended_by)
    return summary_of_run(str(path), estimate)


def _refuse_incomplete(path: Path, ended_by: EndedBy) -> None:
    """How far a run came is chance, unless it always fails after the same loop that foretell ends."""
    if ended_by.kind != "early_end":
        why = ended_by.message
        raise UnsupportedError(f"{path}: the run is incomplete ({why}), so it cannot be compared with another.")


def summary_of_run(path: str, estimate: Estimate) -> Summary:
    peaks = {name: getattr(estimate.peak, name) for name in PEAKS if name not in _OF_ATTRIBUTION}
    categories = modules = held = None
    if estimate.attribution is not None:
        peaks |= {name: getattr(estimate.attribution, name) for name in _OF_ATTRIBUTION}
        blocks = blocks_at_peak(estimate.attribution)
        categories = {str(category): size for category, size in by_category(blocks).items()}
        modules = dict(by_module(blocks))
        held = tuple(Held(**{each.name: getattr(block, each.name) for each in fields(Held)}) for block in blocks)
    return Summary(
        path=path,
        verdict=estimate.verdict,
        engine=estimate.engine,
        gpu=estimate.gpu.name,
        torch=estimate.torch_version,
        cuda=estimate.cuda_version,
        foretell=estimate.foretell_version,
        command=estimate.command,
        peaks=peaks,
        steps=estimate.steps,
        outside_steps=estimate.outside_steps,
        oom_step=estimate.oom.step if estimate.oom else None,
        categories=categories,
        modules=modules,
        blocks=held,
    )


# --- of an estimate ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Oom:
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    module: str | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    allocated_bytes: int
    reserved_bytes: int
    library_bytes: int
    context_bytes: int
    device_bytes: int
    fragmentation_bytes: int | None = None
    slack_bytes: int | None = None
    request_bytes: int | None = None
    by_category: dict[str, int] | None = None
    by_module: tuple[_Module, ...] | None = None
    blocks: tuple[Held, ...] | None = None
    num_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """What of an estimate's JSON is compared."""

    verdict: str
    gpu: _Gpu
    torch: str
    peak: _Peak
    engine: str = "virtual"
    cuda: str | None = None
    foretell: str | None = None
    command: tuple[str, ...] = ()
    steps: tuple[StepPeak, ...] = ()
    outside_steps: tuple[OutsidePeak, ...] | None = None
    oom: _Oom | None = None
    ended_by: EndedBy | None = None


def _document(path: Path) -> _Document:
    try:
        document = parse(disk.read(path, most_bytes=_MOST_BYTES), name=str(path))
        return from_plain(_Document, document, where="estimate", others="ignore")
    except TraceError as error:
        raise TraceError(f"{error} {_WANTED}") from None
    except ValueError as error:
        raise TraceError(f"{path} is a damaged estimate: {error}. {_WANTED}") from None


def _of_document(document: _Document, path: Path) -> Summary:
    if document.ended_by is not None:
        _refuse_incomplete(path, document.ended_by)
    peak = document.peak
    modules, blocks = peak.by_module, peak.blocks
    sizes = {name: getattr(peak, name) for name in PEAKS}
    return Summary(
        path=str(path),
        verdict=document.verdict,
        engine=document.engine,
        gpu=document.gpu.name,
        torch=document.torch,
        cuda=document.cuda,
        foretell=document.foretell,
        command=mask_command(document.command),
        peaks={name: size for name, size in sizes.items() if size is not None},
        steps=document.steps,
        outside_steps=document.outside_steps,
        oom_step=document.oom.step if document.oom else None,
        categories=peak.by_category,
        modules=None if modules is None else {each.module: each.bytes for each in modules},
        modules_floor_bytes=_floor(modules),
        blocks=blocks,
        blocks_floor_bytes=0 if blocks and len(blocks) == peak.num_blocks else _floor(blocks),
    )


def _floor(listed: Sequence[_Module | Held] | None) -> int:
    return min(each.bytes for each in listed) if listed and len(listed) >= LISTED else 0
