"""What the interval and the request are made of, for `--explain`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.records import CauseName, Estimate
from foretell.units import format_bytes

TITLES: dict[CauseName, str] = {
    "context": "CUDA context",
    "libraries": "libraries",
    "convolutions": "workspaces of convolutions",
    "lengths": "shapes of batches",
    "streams": "order of events on streams",
    "values": "unknown values",
    "workspaces": "undocumented workspaces",
    "connections": "buffers of NCCL",
    "script": "the script itself",
    "remainder": "order of cached blocks",
}


def render(estimate: Estimate) -> RenderableType:
    peak = estimate.peak
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False, pad_edge=False)
    table.add_column("cause")
    for heading in ("below", "above", "in request"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", style="bright_black")
    for cause in estimate.causes:
        sizes = (cause.below_bytes, cause.above_bytes, cause.request_bytes)
        table.add_row(TITLES[cause.name], *map(format_bytes, sizes), cause.why)
    totals = (
        peak.device_bytes - peak.device_low_bytes,
        peak.device_high_bytes - peak.device_bytes,
        peak.request_bytes - peak.device_bytes,
    )
    table.add_row("total", *map(format_bytes, totals), style="bold")
    title = Text.assemble("The interval around ", (format_bytes(peak.device_bytes), "bold"), " is made of:")
    return Padding(Group(title, table), (0, 2, 1, 2), expand=False)
