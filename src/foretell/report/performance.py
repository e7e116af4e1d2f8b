"""Time and utilization of a step in words and tables: for the terminal, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.records import Activity, KernelTime, Performance

STEPS = 1000
"""For energy and money."""
_MOST_KERNELS = 5
_MOST_MODULES = 5
_MOST_MODULES_OF_PAGE = 50
_WORDS = {
    "gemm": "matrix products", "bmm": "batched matrix products", "conv": "convolutions",
    "conv_backward": "convolutions, backward", "grouped_conv": "grouped convolutions",
    "grouped_conv_backward": "grouped convolutions, backward", "depthwise": "depthwise convolutions",
    "depthwise_backward": "depthwise convolutions, backward", "elementwise": "elementwise operators",
    "strided": "copies of strided tensors", "reduction": "reductions", "softmax": "softmax",
    "norm": "layer and group norms", "batch_norm": "batch norms", "batch_norm_inference": "batch norms",
    "pool": "pooling", "indexing": "indexing", "foreach": "optimizer kernels", "attention": "attention",
    "fused": "compiled kernels", "fused_reduction": "compiled reductions", "upsample": "upsampling",
    "recurrent": "recurrent nets", "copy": "copies", "other": "other kernels",
}  # fmt: skip
_BOUND = {
    "gpu": "bound by the GPU", "host": "bound by the host", "loader": "bound by the data loader",
    "copies": "bound by copies to and from the GPU", "mixed": "not bound by one of them alone",
}  # fmt: skip


def sentence(performance: Performance) -> str:
    """What a step takes, how busy the card is, and what holds it up."""
    time = performance.time
    what = "step" if time.kind == "training" else "forward pass"
    text = f"A {what} takes about {duration(time.step_ms)} ({interval(time.step_low_ms, time.step_high_ms)})"
    if time.samples_per_second is not None:
        text += f", {_number(time.samples_per_second)} samples/s"
    text += f"; the card is busy {performance.activity.gpu:.0%} of it"
    if performance.kernels and performance.kernels[0].share >= 0.3:
        first = performance.kernels[0]
        text += f"; {first.share:.0%} of its work is {class_words(first.name)}"
    return f"{text}; {_BOUND[time.bound]}."


def remedy(performance: Performance) -> str | None:
    """What would help, if the GPU waits."""
    time = performance.time
    if time.bound == "host":
        waits = f"The GPU waits {1 - performance.activity.gpu:.0%} of the step for the CPU"
        return f"{waits}: a larger batch, torch.compile or CUDA graphs would help."
    if time.bound == "loader":
        return "The GPU waits for data: more workers, or less work for each sample, would help."
    if time.bound == "copies":
        return "The GPU waits for copies: pinned memory (pin_memory=True) and non_blocking=True would help."
    return None


def expense(performance: Performance) -> str | None:
    """What many steps take: time, energy, and money where the price of an hour was given."""
    parts = []
    if performance.joules is not None:
        hours = performance.joules * STEPS / 3600
        parts.append(f"about {f'{_number(hours)} Wh' if hours < 100 else f'{_number(hours / 1000)} kWh'}")
    cost = price(performance)
    if cost is not None:
        parts.append(f"costing {_number(cost)} at {performance.price_per_hour:g} an hour")
    what = "steps" if performance.time.kind == "training" else "passes"
    took = _long(performance.time.step_ms * STEPS / 1e3)
    return f"{STEPS:,} {what} take {', '.join([took, *parts])}" if parts else None


def price(performance: Performance) -> float | None:
    """Of STEPS steps."""
    per_hour = performance.price_per_hour
    return None if per_hour is None else per_hour * performance.time.step_ms * STEPS / 3.6e6


def _long(seconds: float) -> str:
    if seconds < 120:
        return duration(1e3 * seconds)
    return f"{_number(seconds / 60)} min" if seconds < 7200 else f"{_number(seconds / 3600)} h"


def duration(ms: float) -> str:
    return f"{_number(ms / 1000)} s" if ms >= 995 else f"{_number(ms)} ms"


def interval(low_ms: float, high_ms: float) -> str:
    if high_ms >= 995:
        return f"{_number(low_ms / 1000)} to {_number(high_ms / 1000)} s"
    return f"{_number(low_ms)} to {_number(high_ms)} ms"


def _number(value: float) -> str:
    """Two significant digits, three below 10: 0.412, 4.1, 41, 412."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def class_words(name: str) -> str:
    return _WORDS.get(name, name)


def part(performance: Performance) -> RenderableType:
    """For the terminal: the sentence, utilization, the slowest kernels and modules."""
    lines: list[RenderableType] = [Text(sentence(performance), style="bold")]
    help_words = remedy(performance)
    if help_words is not None:
        lines.append(Text(help_words))
    expense_words = expense(performance)
    if expense_words is not None:
        lines.append(Text(f"{expense_words}.", style="bright_black"))
    lines += [Text(), _activity(performance)]
    if performance.kernels:
        lines += [Text(), _table("kernels", performance.kernels[:_MOST_KERNELS])]
    if performance.modules:
        lines += [Text(), _table("modules", performance.modules[:_MOST_MODULES])]
    if performance.unknown_share >= 0.01:
        share = f"{performance.unknown_share:.0%} of the GPU's time"
        words = f"{share} is of operators and kernels without a rule: how long they take is a guess"
        lines += [Text(), Text(words, style="yellow")]
    return Padding(Group(*lines), (1, 2, 0, 2), expand=False)


def _activity(performance: Performance) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for label, value, low, high in _shown(performance):
        table.add_row(label, Text(f"{value:.0%}", style="bold"), Text(f"{low:.0%} to {high:.0%}", style="bright_black"))
    return table


def _shown(performance: Performance) -> list[tuple[str, float, float, float]]:
    """Label, share, low and high."""
    labels = {
        "gpu": "GPU busy", "smact": "SMs active", "smocc": "SM occupancy", "tensor_active": "tensor cores",
        "fp32_active": "fp32 lanes", "dram_active": "memory bandwidth",
    }  # fmt: skip
    each = (performance.activity, performance.activity_low, performance.activity_high)
    return [(label, *(getattr(one, name) for one in each)) for name, label in labels.items()]


def _table(title: str, rows: tuple[KernelTime, ...]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bright_black", pad_edge=False)
    table.add_column(title, no_wrap=True)
    for heading in ("time", "share", "of peak", "of bandwidth"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in rows:
        name = class_words(each.name) if title == "kernels" else each.name
        table.add_row(
            name, duration(each.ms), f"{each.share:.0%}", f"{each.of_peak:.0%}", f"{each.of_bandwidth:.0%}"
        )
    return table


def document(performance: Performance) -> dict[str, Any]:
    """The keys `time`, `utilization`, `kernels`, `modules` and `unknown_share` of the JSON."""
    time = asdict(performance.time)
    return {
        "time": {name: value for name, value in time.items() if value is not None} | _expenses(performance),
        "utilization": {
            **_shares(performance.activity),
            "low": _shares(performance.activity_low),
            "high": _shares(performance.activity_high),
        },
        "kernels": [_kernel(each, "class") for each in performance.kernels],
        "modules": [_kernel(each, "module") for each in performance.modules[:50]],
        "unknown_share": round(performance.unknown_share, 4),
        "time_caveats": list(performance.caveats),
    }


def _expenses(performance: Performance) -> dict[str, Any]:
    cost = price(performance)
    money = {} if cost is None else {"price_per_hour": performance.price_per_hour, f"price_of_{STEPS}_steps": cost}
    return {"joules": performance.joules, **money}


def timeline(performance: Performance) -> dict[str, Any]:
    """Beside the memory over time: utilization over one steady step."""
    found = performance.timeline
    return {
        "bucket_ms": found.bucket_ms,
        "gract": _rounded(found.gract),
        "smact": _rounded(found.smact),
        "dram_active": _rounded(found.dram_active),
        "bucket_phase": list(found.phase),
        "bucket_kernels": {name: _rounded(shares) for name, shares in found.kernels},
        "waits": [asdict(each) for each in found.waits],
    }


def page(performance: Performance) -> dict[str, Any]:
    """What the HTML report shows."""
    time, found = performance.time, performance.timeline
    return {
        "sentence": " ".join([sentence(performance), *(f"{each}." for each in [expense(performance)] if each)]),
        "remedy": remedy(performance),
        "name": "Step time" if time.kind == "training" else "Forward pass",
        "took": duration(time.step_ms),
        "interval": interval(time.step_low_ms, time.step_high_ms),
        "bound": _BOUND[time.bound],
        "phases": [{"phase": phase, "took": duration(ms)} for phase, ms in time.phases.items()],
        "activity": [
            {"label": label, "share": value, "low": low, "high": high}
            for label, value, low, high in _shown(performance)
        ],
        "classes": [
            {"kind": each.name, "label": class_words(each.name), "module": each.module, **_of_page(each)}
            for each in performance.kernels
        ],
        "modules": [{"label": each.name, **_of_page(each)} for each in performance.modules[:_MOST_MODULES_OF_PAGE]],
        "unknown_share": performance.unknown_share,
        "timeline": {
            "bucket_ms": found.bucket_ms,
            "phase": found.phase,
            "gract": _rounded(found.gract),
            "smact": _rounded(found.smact),
            "dram_active": _rounded(found.dram_active),
            "stack": [
                {"kind": name, "label": class_words(name), "shares": _rounded(shares)} for name, shares in found.kernels
            ],
        },
        "waits": [
            {"begin_ms": each.begin_ms, "took": duration(each.ms), "before": each.before, "phase": each.phase}
            for each in found.waits
        ],
    }


def _of_page(each: KernelTime) -> dict[str, Any]:
    shares = {"share": each.share, "of_peak": each.of_peak, "of_bandwidth": each.of_bandwidth}
    return {"took": duration(each.ms), **shares}


def _rounded(shares: tuple[float, ...]) -> list[float]:
    return [round(value, 3) for value in shares]


def _shares(activity: Activity) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(activity).items()}


def _kernel(each: KernelTime, key: str) -> dict[str, Any]:
    values = asdict(each)
    values[key] = values.pop("name") if key == "class" else each.name
    values.pop("name", None)
    return values
