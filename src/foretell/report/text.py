"""The estimate in a terminal: the verdict, where the memory is, how the run went, the caveats."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from foretell.records import Attribution, Category, Estimate, Gpu, Leak
from foretell.report import performance
from foretell.report.batches import batch_rows, order_words
from foretell.report.dotted import shared_prefix, shortened
from foretell.report.headline import WHICH_NUMBER, label_of
from foretell.report.holders import OUTSIDE, blocks_at_peak, by_category, holders, timeline, words_of
from foretell.report.isolation import isolation_rows
from foretell.report.places import relative_place, short_place
from foretell.report.ranks import how_many, of_rank, ranges, remark
from foretell.report.steps import StepLine, peak_words, step_lines
from foretell.rules.capacity import LONGEST_TRAINING, capacity_of, steps_until_full
from foretell.units import GIB, format_bytes

_MAX_WIDTH = 100
"""Of everything but the holders, whose names may need more."""
_NARROW = 76
"""Narrower than this, columns are stacked instead of placed side by side."""
_NO_NOTES = 56
_MAX_STEPS = 8
_MAX_HOLDERS = 10
_MAX_LEAKS = 3
_LEVELS = "▁▂▃▄▅▆▇█"
_PHASE_STYLES = {"forward": "green", "backward": "cyan", "optimizer": "magenta", "evaluation": "yellow"}
_CATEGORIES: dict[Category, str] = {
    "parameter": "blue", "buffer": "bright_blue", "gradient": "cyan", "optimizer_state": "magenta",
    "activation": "green", "input": "yellow", "temporary": "bright_black", "workspace": "red",
}  # fmt: skip
_PARTS = {"allocated": "green", "cache": "cyan", "libraries": "magenta", "context": "blue", "others": "yellow"}


def render(estimate: Estimate, console: Console) -> None:
    width = min(console.width, _MAX_WIDTH)
    whole = console.width
    parts = [
        (_headline(estimate, width), width), (_memory(estimate, width), width), (_composition(estimate, width), width),
        (_holders(estimate, whole), whole), (_over_time(estimate, width), width), (_performance(estimate), width),
        (_leaks(estimate), width),
        (_ranks(estimate), width), (_steps(estimate), width), (_run(estimate), width), (_caveats(estimate), width),
    ]  # fmt: skip
    for part, part_width in parts:
        if part is not None:
            console.print(part, width=part_width)


def _performance(estimate: Estimate) -> RenderableType | None:
    return performance.part(estimate.performance) if estimate.performance else None


def _headline(estimate: Estimate, width: int) -> RenderableType:
    gpu, peak = estimate.gpu, estimate.peak
    capacity = capacity_of(estimate)
    lines: list[RenderableType] = []
    if estimate.oom is None:
        is_sure = capacity.spare_bytes(peak.device_high_bytes + estimate.other_processes_bytes) >= 0
        spare = format_bytes(capacity.spare_bytes(estimate.device_bytes))
        text = Text.assemble(
            (f" {label_of(estimate)} ", "bold black on yellow" if estimate.ended_by else "bold white on green"),
            f"  needs {'at least ' if estimate.ended_by else 'at most ' if estimate.together else ''}",
            (format_bytes(estimate.device_bytes), "bold"),
            f" of {format_bytes(capacity.available_bytes)}, ",
            (f"{spare} to spare", "bold green" if is_sure else "bold yellow"),
            f", {of_rank(estimate)}" if estimate.world else "",
        )
        lines += [text, Text(), _bar(estimate, width - 6)]
    else:
        oom = estimate.oom
        text = Text.assemble((f" {label_of(estimate)} ", "bold white on red"), "  ")
        if oom.is_together:
            text.append("the processes of the job do not fit together")
        else:
            text.append("in step ").append(str(oom.step), style="bold").append(f", {_phase_words(oom.phase)}")
        if oom.where:
            text.append(", at ").append(relative_place(oom.where), style="bold")
        if estimate.world is not None:
            text.append(f", {of_rank(estimate)}")
        lines += [text, *_need(estimate)]
        lines += [Text(), _bar(estimate, width - 6), Text(), Text(_without_advice(oom.message), style="italic")]
        if estimate.need is None:
            why = f"How much it needs is not known: {estimate.need_unknown}. " if estimate.need_unknown else ""
            lines += [Text(), Text(f"{why}To see the full requirement, use a larger card: --gpu {_larger(gpu)}")]
    if estimate.ended_by:
        lines += [Text(), Text.assemble(("INCOMPLETE ", "bold yellow"), f" {estimate.ended_by.message}")]
    name = Text(gpu.device_name, style="default bold")
    if "," not in gpu.name:
        name.append(f" ({gpu.name})", style="not bold")
    border = "red" if estimate.oom else "yellow" if estimate.ended_by else "green"
    return Panel(Group(*lines), title=name, title_align="left", border_style=border, padding=(0, 2))


def _need(estimate: Estimate) -> list[RenderableType]:
    need = estimate.need
    if need is None:
        return []
    text = Text.assemble("needs ", (format_bytes(need.device_bytes), "bold"))
    missing = -capacity_of(estimate).spare_bytes(need.device_bytes)
    if missing > 0:
        text.append(f", {format_bytes(missing)} more than ")
        text.append("is free on the card" if estimate.used_by_others_bytes else "the card has")
    fitting = f"smallest cards that fit: {', '.join(need.smallest_gpus)}" if need.smallest_gpus else "fits on no card"
    return [Text(), text, Text(fitting if need.smallest_gpus else f"{fitting} of `foretell gpus`")]


def _larger(gpu: Gpu) -> str:
    """The same kind of card with four times the memory, in the free form of --gpu."""
    return f"{round(gpu.total_bytes / GIB) * 4}GiB,sm{gpu.compute_capability[0]}{gpu.compute_capability[1]}"


def _bar(estimate: Estimate, width: int) -> Text:
    """The memory of the card, from left to right: each part in its colour, then the free part."""
    peak, total = estimate.peak, estimate.gpu.total_bytes
    sizes = {
        "allocated": peak.allocated_bytes,
        "cache": peak.reserved_bytes - peak.allocated_bytes,
        "libraries": peak.library_bytes,
        "context": peak.context_bytes,
    }
    others = estimate.other_processes_bytes + estimate.used_by_others_bytes
    if others:
        sizes["others"] = others
    percent = f" {sum(sizes.values()) / total:4.0%}"
    cells = max(10, width - len(percent))
    bar, edge, drawn = Text(), 0, 0
    for part, size in sizes.items():
        edge += size
        until = min(cells, round(edge / total * cells))
        bar.append("█" * (until - drawn), style=_PARTS[part])
        drawn = max(drawn, until)
    bar.append("░" * (cells - drawn), style="bright_black")
    return bar.append(percent)


def _memory(estimate: Estimate, width: int) -> RenderableType:
    peak = estimate.peak
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="bright_black", overflow="fold")

    def row(part: str | None, label: str, size: int, note: str, style: str = "") -> None:
        mark = ("■ ", _PARTS[part]) if part else ("  ", "")
        notes = [note] if width >= _NO_NOTES else []
        table.add_row(Text.assemble(mark, (label, style)), Text(format_bytes(size), style=style), *notes)

    libraries = ", ".join(estimate.library_names)
    guess = "from --context" if estimate.is_context_given else "estimated; set yours with --context"
    cached = peak.reserved_bytes - peak.allocated_bytes
    row("allocated", "peak allocated", peak.allocated_bytes, "live tensors (max_memory_allocated)")
    row(None, "peak reserved", peak.reserved_bytes, "allocated plus cache (max_memory_reserved)", "bold")
    row("cache", "  not allocated", cached, "cached blocks and fragmentation")
    row("libraries", "+ libraries", peak.library_bytes, libraries or "none loaded")
    row("context", "+ CUDA context", peak.context_bytes, guess)
    interval = f"{format_bytes(peak.device_low_bytes)} to {format_bytes(peak.device_high_bytes)}; as in nvidia-smi"
    row(None, "= device", peak.device_bytes, interval, "bold")
    if estimate.together:
        label = f"= {estimate.together.num_processes} processes"
        note = "at most: the sum of their peaks, each with its own context"
        row("others", label, estimate.device_bytes, note, "bold")
    if estimate.used_by_others_bytes:
        row("others", "  other processes", estimate.used_by_others_bytes, "from --used-by-others")
    if estimate.oom is None:
        row(None, "  request", estimate.request_bytes, "ask your scheduler for this: enough for 99 % of runs")
        return Padding(Group(table, Text(), Text(WHICH_NUMBER)), (1, 2, 0, 2), expand=False)
    title = "The largest process:" if estimate.oom.is_together else "Memory in use when it ran out:"
    return Padding(Group(Text(title), table), (1, 2, 0, 2), expand=False)


def _composition(estimate: Estimate, width: int) -> RenderableType | None:
    """The peak by category."""
    attribution = estimate.attribution
    if attribution is None or not attribution.at_peak:
        return None
    sizes = by_category(blocks_at_peak(attribution))
    total = sum(sizes.values())
    bar, drawn, edge = Text(), 0, 0
    for category, size in sizes.items():
        edge += size
        until = round(edge / total * (width - 4))
        bar.append("█" * (until - drawn), style=_CATEGORIES[category])
        drawn = until
    legend = Columns(
        [
            Text.assemble(("■ ", _CATEGORIES[category]), f"{words_of(category)} {format_bytes(size)}")
            for category, size in sorted(sizes.items(), key=lambda item: -item[1])
            if size
        ],
        padding=(0, 2),
    )
    title = Text.assemble("Allocated at the peak: ", (format_bytes(total), "bold"))
    return Padding(Group(title, bar, legend), (1, 2, 0, 2), expand=False)


def _holders(estimate: Estimate, width: int) -> RenderableType | None:
    """The largest holders, each in one line; in a narrow terminal the line of code goes below the module.

    Where there is no room, what all modules share is said once, then libraries become an asterisk, then names are
    shortened.
    """
    attribution = estimate.attribution
    if attribution is None or not attribution.at_peak:
        return None
    rows = holders(blocks_at_peak(attribution))[:_MAX_HOLDERS]
    sizes = [format_bytes(row.bytes) for row in rows]
    whats = [(words_of(row.category), f" x{row.num_blocks}" if row.num_blocks > 1 else "") for row in rows]
    modules = [row.name or row.module or OUTSIDE for row in rows]
    lines = [short_place(row.where) if row.where else "" for row in rows]
    notes = []
    is_narrow = width < _NARROW
    # In a narrow terminal these wrap.
    whole = [word for what, many in whats for word in ((what + many).split() if is_narrow else [what + many])]
    left = width - 4 - _longest(sizes) - _longest(whole) - 6

    def has_room() -> bool:
        needed = _longest(modules), _longest(lines)
        return (max(needed) if is_narrow else sum(needed)) <= left

    shared = shared_prefix([module for module in modules if module != OUTSIDE])
    if shared and not has_room():
        notes.append(f"modules of {shared}")
        modules = [module.removeprefix(f"{shared}.") for module in modules]
    if any(" (" in line for line in lines) and not has_room():
        notes.append("* in a library")
        lines = [re.sub(r" \(.*", "*", line) for line in lines]
    line_width = left if is_narrow or has_room() else min(_longest(lines), left // 2)
    module_width = left if is_narrow or has_room() else left - line_width
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False, pad_edge=False)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what", no_wrap=not is_narrow)
    table.add_column("module, line" if is_narrow else "module", no_wrap=True)
    if not is_narrow:
        table.add_column("line", no_wrap=True)
    for row, size, (category, many), module, line in zip(rows, sizes, whats, modules, lines, strict=True):
        what = Text.assemble((category, _CATEGORIES[row.category]), many)
        places = [Text(shortened(module, module_width)), Text(shortened(line, line_width), style="bright_black")]
        table.add_row(size, what, *([Text("\n").join(places)] if is_narrow else places))
    note = [Text("; ".join(notes), style="bright_black")] if notes else []
    return Padding(Group(*note, table), (1, 2, 0, 2), expand=False)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _over_time(estimate: Estimate, width: int) -> RenderableType | None:
    attribution = estimate.attribution
    if attribution is None or not attribution.at_peak or len(attribution.spans) < 2:
        return None
    return Padding(_sparkline(attribution, width - 4), (1, 2, 0, 2), expand=False)


def _sparkline(attribution: Attribution, width: int) -> RenderableType:
    """Allocated bytes over the run: each column is the maximum of its events. Below it, the start of each step, which
    is not the evaluation before it."""
    points = timeline(attribution, max_points=width)
    most = max(point.allocated_bytes for point in points)
    line, steps, last = Text(), "", -1
    for point in points:
        level = round(point.allocated_bytes / most * (len(_LEVELS) - 1)) if most else 0
        line.append(_LEVELS[level], style=_PHASE_STYLES.get(point.phase, "default"))
        at, number = line.cell_len - 1, str(point.step)
        has_room = (not steps or at > len(steps)) and at + len(number) <= width
        if point.step == last or (point.phase in ("evaluation", "other") and steps):
            continue
        if has_room:
            steps = steps.ljust(at) + number
        last = point.step
    legend = [Text("memory by step:")]
    for phase, style in _PHASE_STYLES.items():
        if any(point.phase == phase for point in points):
            legend.append(Text.assemble(("■ ", style), _phase_words(phase)))
    return Group(line, Text(steps, style="bright_black"), Columns(legend, padding=(0, 2)))


def _leaks(estimate: Estimate) -> RenderableType | None:
    steps = steps_until_full(estimate)
    if steps is None:
        return None
    if steps > LONGEST_TRAINING:
        return Padding(Text(_small_growth(estimate, steps), style="bright_black"), (1, 2, 0, 2), expand=False)
    lines = [
        Text.assemble(
            ("LEAK ", "bold red"),
            f" grows by {format_bytes(leak.bytes_per_step)} per step; allocated at ",
            (_place_of(leak), "bold"),
            f"; {leak.num_blocks} blocks, {format_bytes(leak.held_bytes)} so far. ",
            f"Kept alive by {', '.join(leak.held_by)}. " if leak.held_by else "",
        )
        for leak in estimate.leaks[:_MAX_LEAKS]
    ]
    if estimate.oom is None:
        lines.append(Text(f"At this rate, the card is full after {_about(steps)} more steps."))
    lines.append(Text("Keep loss.item() or loss.detach() instead of tensors with their graph, or drop the references."))
    return Padding(Group(*lines), (1, 2, 0, 2), expand=False)


def _small_growth(estimate: Estimate, steps: int) -> str:
    growth = format_bytes(sum(leak.bytes_per_step for leak in estimate.leaks))
    places = list(dict.fromkeys(map(_place_of, estimate.leaks)))
    more = ", ..." if len(places) > _MAX_LEAKS else ""
    return (
        f"Memory grows by {growth} per step, allocated at {', '.join(places[:_MAX_LEAKS])}{more}. That is little: the "
        f"card would be full after {_about(steps)} steps."
    )


def _place_of(leak: Leak) -> str:
    return relative_place(leak.where) if leak.where else leak.module or "an unknown line"


def _about(count: int) -> str:
    """Two digits are enough: `about 5,700,000`."""
    rounded = round(count, min(0, 2 - len(str(count))))
    return f"{rounded:,}" if rounded == count else f"about {rounded:,}"


def _steps(estimate: Estimate) -> RenderableType | None:
    """Steps and evaluations; nothing if they all look the same, since the peak is enough then."""
    lines = step_lines(estimate)
    if len({line.sizes for line in lines}) < 2:
        return None
    table = Table(box=None, padding=(0, 2), header_style="bright_black", show_edge=False)
    table.add_column("step")
    table.add_column("allocated", justify="right")
    table.add_column("reserved", justify="right")
    table.add_column("")
    for line in _chosen(lines):
        if line is None:
            table.add_row("...")
        else:
            table.add_row(
                line.place, *line.sizes, "peak reserved" if line.is_peak else "", style="bold" if line.is_peak else ""
            )
    return Padding(table, (1, 2, 0, 2), expand=False)


def _ranks(estimate: Estimate) -> RenderableType | None:
    if estimate.world is None:
        return None
    table = Table(box=None, padding=(0, 1), header_style="bright_black", show_edge=False)
    for heading in ("ranks", "allocated", "reserved", "libraries", "device", "spare"):
        table.add_column(heading, justify="left" if heading == "ranks" else "right", no_wrap=heading != "ranks")
    table.add_column("")
    for rank in estimate.ranks:
        peak = rank.peak
        sizes = (peak.allocated_bytes, peak.reserved_bytes, peak.library_bytes, peak.device_bytes, rank.spare_bytes)
        style = "bold" if rank.rank == estimate.world.worst_rank and len(estimate.ranks) > 1 else ""
        table.add_row(ranges(rank.stands_for), *map(format_bytes, sizes), remark(rank), style=style)
    return Padding(Group(Text(f"{how_many(estimate.world)}:"), table), (1, 2, 0, 2), expand=False)


def _chosen(lines: list[StepLine]) -> list[StepLine | None]:
    """All lines if there are few; otherwise the first, the last, the peak and the largest evaluation, with None for a
    gap."""
    if len(lines) <= _MAX_STEPS:
        return list(lines)
    numbers = range(len(lines))
    wanted = {0, 1, 2, len(lines) - 2, len(lines) - 1} | {i for i in numbers if lines[i].is_peak}
    wanted |= set(sorted((i for i in numbers if not lines[i].is_step), key=lambda i: -lines[i].reserved_bytes)[:1])
    chosen: list[StepLine | None] = []
    for i in sorted(wanted):
        if chosen and i - 1 not in wanted:
            chosen.append(None)
        chosen.append(lines[i])
    return chosen


def _run(estimate: Estimate) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    cuda = f", CUDA {estimate.cuda_version}" if estimate.cuda_version else ""
    table.add_row("torch", f"{estimate.torch_version}{cuda}")
    table.add_row("steps", f"{len(estimate.steps)} run{peak_words(estimate)}")
    if estimate.phases_seen:
        table.add_row("phases", ", ".join(_phase_words(phase) for phase in estimate.phases_seen))
    for title, words in batch_rows(estimate):
        table.add_row(title, Text(words))
    if estimate.orders is not None:
        table.add_row("orders", Text(order_words(estimate.orders)))
    for what in estimate.ended_early:
        table.add_row("ended early", Text(what))
    if "earlier_runs" in estimate.seconds:
        table.add_row("run again", Text("with whole loops; with one that foretell ended early, the script failed"))
    if estimate.num_unknown_reads:
        count = estimate.num_unknown_reads
        table.add_row("values", Text(f"{count:,} unknown {'value' if count == 1 else 'values'} read, to show or keep"))
    for title, text in isolation_rows(estimate):
        table.add_row(title, Text(text))
    if "total" in estimate.seconds:
        table.add_row("time", _time(estimate.seconds))
    return Padding(table, (1, 2, 0, 2), expand=False)


def _time(seconds: dict[str, float]) -> str:
    """Measured times only: an import does not run the script."""
    text = f"{seconds['total']:.1f} s"
    if "script" in seconds:
        imports = seconds.get("import_torch", 0.0)
        of_which = f", including {imports:.1f} s to import torch" if imports else ""
        analysis = f"; analysis {seconds['analysis']:.1f} s" if "analysis" in seconds else ""
        text += f" (script {seconds['script']:.1f} s{of_which}{analysis})"
    if "earlier_runs" in seconds:
        text += f"; {seconds['earlier_runs']:.1f} s in earlier runs"
    return f"{text}; {seconds['need']:.1f} s to find the need" if "need" in seconds else text


def _caveats(estimate: Estimate) -> RenderableType | None:
    if not estimate.caveats:
        return Text()  # a blank line below the table
    table = Table.grid(padding=(0, 1))
    table.add_column(style="yellow")
    table.add_column(overflow="fold")
    for caveat in estimate.caveats:
        table.add_row("!", Text(caveat))
    return Padding(table, (1, 2, 1, 2), expand=False)


def _phase_words(phase: str) -> str:
    return {"optimizer": "optimizer step", "other": "outside a step"}.get(phase, phase)


def _without_advice(message: str) -> str:
    """PyTorch's message without the pointer to its documentation at the end."""
    return message.split(" See documentation for Memory Management")[0].strip()
