"""The `Summary` of a trace or an estimate on disk, for comparison: its peaks, and the memory behind them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretell.errors import ScriptError, TraceError, UnsupportedError
from foretell.records import Estimate, StepPeak
from foretell.report.holders import LISTED, blocks_at_peak, by_category, by_module
from foretell.report.json import parse

_WANTED = "Give a trace (`foretell run --trace FILE ...`) or an estimate (`foretell run --json FILE ...`)."
PEAKS = (
    "allocated_bytes", "fragmentation_bytes", "slack_bytes", "reserved_bytes", "library_bytes", "context_bytes",
    "device_bytes", "request_bytes",
)  # fmt: skip
_OF_ATTRIBUTION = ("fragmentation_bytes", "slack_bytes")
_LATER = (*_OF_ATTRIBUTION, "request_bytes")
"""Not in every estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A block that was held at the peak."""

    bytes: int
    category: str
    name: str | None
    module: str | None
    operator: str | None
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Facts about one run for comparison. None: not in the file."""

    path: str
    verdict: str
    engine: str
    gpu: str
    torch: str
    cuda: str | None
    command: tuple[str, ...]
    peaks: dict[str, int]
    """By name, as far as available; see PEAKS."""
    steps: tuple[StepPeak, ...]
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
        with path.open("rb") as file:
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
        _refuse_incomplete(path, asdict(estimate.ended_by))
    return summary_of_run(str(path), estimate)


def _refuse_incomplete(path: Path, ended_by: dict[str, Any]) -> None:
    """How far a run came is chance, unless it always fails after the same loop that foretell ends."""
    if ended_by["kind"] != "early_end":
        why = ended_by["message"]
        raise UnsupportedError(f"{path}: the run is incomplete ({why}), so it cannot be compared with another.")


def summary_of_run(path: str, estimate: Estimate) -> Summary:
    peaks = {name: getattr(estimate.peak, name) for name in PEAKS if name not in _OF_ATTRIBUTION}
    categories = modules = held = None
    if estimate.attribution is not None:
        peaks |= {name: getattr(estimate.attribution, name) for name in _OF_ATTRIBUTION}
        blocks = blocks_at_peak(estimate.attribution)
        categories = {str(category): size for category, size in by_category(blocks).items()}
        modules = dict(by_module(blocks))
        held = tuple(
            Held(bytes=b.bytes, category=b.category, name=b.name, module=b.module, operator=b.operator, phase=b.phase)
            for b in blocks
        )
    return Summary(
        path=path,
        verdict=estimate.verdict,
        engine=estimate.engine,
        gpu=estimate.gpu.name,
        torch=estimate.torch_version,
        cuda=estimate.cuda_version,
        command=estimate.command,
        peaks=peaks,
        steps=estimate.steps,
        oom_step=estimate.oom.step if estimate.oom else None,
        categories=categories,
        modules=modules,
        blocks=held,
    )


# --- of an estimate ---------------------------------------------------------------------------------------------------


def _document(path: Path) -> dict[str, Any]:
    try:
        return parse(path.read_bytes(), name=str(path))
    except TraceError as error:
        raise TraceError(f"{error} {_WANTED}") from None


def _of_document(document: dict[str, Any], path: Path) -> Summary:
    try:
        if document.get("ended_by") is not None:
            _refuse_incomplete(path, document["ended_by"])
        peak = document["peak"]
        modules, blocks = peak.get("by_module"), peak.get("blocks")
        oom = document.get("oom")
        return Summary(
            path=str(path),
            verdict=_word(document["verdict"]),
            engine=_word(document.get("engine", "virtual")),
            gpu=_word(document["gpu"]["name"]),
            torch=_word(document["torch"]),
            cuda=_maybe_word(document.get("cuda")),
            command=tuple(_word(word) for word in document.get("command", ())),
            peaks={name: _size(peak[name]) for name in PEAKS if name in peak or name not in _LATER},
            steps=tuple(
                StepPeak(
                    index=_size(step["index"]),
                    peak_allocated_bytes=_size(step["peak_allocated_bytes"]),
                    peak_reserved_bytes=_size(step["peak_reserved_bytes"]),
                )
                for step in document.get("steps", ())
            ),
            oom_step=_size(oom["step"]) if oom else None,
            categories=_categories(peak.get("by_category")),
            modules=None if modules is None else {_maybe_word(m["module"]): _size(m["bytes"]) for m in modules},
            modules_floor_bytes=_floor(modules),
            blocks=None if blocks is None else tuple(_held(block) for block in blocks),
            blocks_floor_bytes=0 if blocks and len(blocks) == peak.get("num_blocks") else _floor(blocks),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"has a wrong value: {error}"
        raise TraceError(f"{path} is a damaged estimate: it {what}. {_WANTED}") from None


def _categories(sums: Any) -> dict[str, int] | None:
    return None if sums is None else {_word(category): _size(size) for category, size in sums.items()}


def _held(block: dict[str, Any]) -> Held:
    return Held(
        bytes=_size(block["bytes"]),
        category=_word(block["category"]),
        name=_maybe_word(block.get("name")),
        module=_maybe_word(block.get("module")),
        operator=_maybe_word(block.get("operator")),
        phase=_word(block.get("phase", "other")),
    )


def _floor(listed: Any) -> int:
    return min(_size(entry["bytes"]) for entry in listed) if listed and len(listed) >= LISTED else 0


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r:.40} is not a number of bytes")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a string")
    return value


def _maybe_word(value: Any) -> str | None:
    return None if value is None else _word(value)
