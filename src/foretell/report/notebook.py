"""The estimate for a notebook: a small self-contained table with a bar."""

from __future__ import annotations

from html import escape

from foretell.records import Estimate
from foretell.units import format_bytes

_GREEN, _RED = "#2e7d32", "#c62828"


def render(estimate: Estimate) -> str:
    peak, gpu = estimate.peak, estimate.gpu
    free = estimate.available_bytes
    fits = estimate.verdict == "fits"
    colour = _GREEN if fits else _RED
    verdict = ("fits" if fits else "runs out of memory") + ("" if estimate.complete else " so far")
    rows = {
        "needed": estimate.device_bytes,
        "reserved by PyTorch": peak.reserved_bytes,
        "allocated at the peak": peak.allocated_bytes,
        "CUDA context": peak.context_bytes,
        "libraries": peak.library_bytes,
        "enough for 99 % of runs": estimate.request_bytes,
    }
    notes = [f"{len(estimate.steps)} steps, torch {estimate.torch_version}"]
    if estimate.together:
        notes.append(f"{estimate.together.num_processes} processes at the same time; parts are those of the largest")
    notes += [f"incomplete: {estimate.ended_by.message}"] if estimate.ended_by else []
    notes += [f"{number} caveats: see .caveats"] if (number := len(estimate.caveats)) else []
    cells = "".join(
        f"<tr><td style='text-align:left'>{name}</td><td style='text-align:right'>{format_bytes(size)}</td></tr>"
        for name, size in rows.items()
    )
    share = min(100.0, 100 * estimate.device_bytes / free)
    return (
        f"<div style='max-width:32em'><b style='color:{colour}'>{verdict}</b> on {escape(gpu.device_name)}: "
        f"{format_bytes(estimate.device_bytes)} of {format_bytes(free)}"
        f"<div style='background:#8884;height:.6em;margin:.3em 0'>"
        f"<div style='background:{colour};height:100%;width:{share:.1f}%'></div></div>"
        f"<table>{cells}</table><small>{escape('; '.join(notes))}</small></div>"
    )
