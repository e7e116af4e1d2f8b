"""An explanation in a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretell.postmortem.diagnosis import TITLES
from foretell.postmortem.explain import Explanation
from foretell.postmortem.message import OomMessage
from foretell.postmortem.reenact import Compared, Reenactment, Tried
from foretell.units import format_bytes

_MAX_WIDTH = 100


def render(explanation: Explanation, console: Console) -> None:
    found, rerun = explanation.diagnosis, explanation.reenactment
    parts: list[RenderableType] = [_headline(explanation)]
    if explanation.balance is not None:
        parts.append(_where_it_was(explanation))
    cause = found.cause
    if rerun is not None:
        parts += [*_rerun(rerun), Text("From the message alone:", style="bold")]
    parts += [
        _line("cause", Text.assemble((TITLES[cause], "bold"), f". {found.why}")),
        _line("helps", Text.assemble((found.helps, "bold"), f": {found.because}")),
        *(_line("does not help", Text(each)) for each in found.does_not_help),
        *(_line("also", Text(each)) for each in found.also),
    ]
    if rerun is None and explanation.cards:
        parts.append(_line("next", Text(_next_step(explanation), style="bright_black")))
    console.print(Padding(Group(*parts), (1, 2, 1, 2), expand=False), width=min(console.width, _MAX_WIDTH))


def _headline(explanation: Explanation) -> Text:
    message = explanation.message
    line = Text.assemble((_title(message), "bold red"))
    if message.requested_bytes is not None:
        line.append(f"  tried to allocate {format_bytes(message.requested_bytes)}")
    if message.gpu is not None:
        line.append(f" on GPU {message.gpu}")
    if message.total_bytes is not None:
        line.append(f", which has {format_bytes(message.total_bytes)}")
    where = _where(message)
    if where:
        line.append(f", at {where}")
    line.append("\n")
    if explanation.num_messages > 1:
        line.append(
            f"message {explanation.number} of {explanation.num_messages} in the text, line {message.line}; --message N "
            "chooses another\n",
            style="bright_black",
        )
    return line


def _title(message: OomMessage) -> str:
    if message.source == "host":
        return "OUT OF HOST MEMORY"
    return "OUT OF MEMORY" if message.backend == "CUDA" else f"{message.backend} OUT OF MEMORY"


def _where(message: OomMessage) -> str | None:
    """The deepest line of the user's own code, and what it called."""
    own = [frame for frame in message.frames if not frame.is_library]
    frame = own[-1] if own else message.frames[-1] if message.frames else None
    if frame is None:
        return None
    deepest = message.frames[-1]
    return frame.place + (f" ({deepest.function} in {deepest.place})" if deepest is not frame else "")


def _where_it_was(explanation: Explanation) -> RenderableType:
    balance = explanation.balance
    assert balance is not None
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for part in balance.parts():
        table.add_row(format_bytes(part.bytes), f"{part.bytes / balance.total_bytes:.0%}", part.name)
    table.add_row(Text(format_bytes(balance.total_bytes), style="bold"), "", Text("the GPU", style="bold"))
    private = explanation.message.private_bytes
    notes = [f"of the allocated memory, {format_bytes(private)} is in private pools (CUDA graphs)"] if private else []
    if balance.missing_bytes < -balance.rounding_bytes:
        notes.append(f"the parts are {format_bytes(-balance.missing_bytes)} more than the GPU has")
    rows: list[RenderableType] = [table, *(Text(note, style="bright_black") for note in notes)]
    return Padding(Group(*rows), (0, 0, 1, 2))


def _rerun(rerun: Reenactment) -> list[RenderableType]:
    title = "not reproduced" if rerun.cause is None else TITLES[rerun.cause]
    parts: list[RenderableType] = [
        Text(f"On the virtual {rerun.estimate.gpu.name}, with torch {rerun.estimate.torch_version}:", style="bold"),
        _line("cause", Text.assemble((title, "bold"), f". {rerun.why}")),
    ]
    if rerun.setting is not None:
        before, after = rerun.setting.before, rerun.setting.after
        parts.append(
            _line(
                "helps",
                Text.assemble((rerun.setting.how, "bold"), f": before, {_outcome(before)}; after, {_outcome(after)}"),
            )
        )
    else:
        parts.append(_line("helps", Text("nothing that was tried makes it fit" if rerun.cause else "nothing to try")))
    parts += [_compared_table(rerun.compared), _tried_table(rerun.tried)]
    parts += [_line("not tried", Text(each, style="bright_black")) for each in rerun.not_tried]
    return [*parts, Text("")]


def _outcome(tried: Tried) -> str:
    reserved = "" if tried.reserved_bytes is None else f" at {format_bytes(tried.reserved_bytes)} reserved"
    return f"{_verdict(tried).plain}{reserved} ({tried.detail})"


def _verdict(tried: Tried) -> Text:
    words = {"fits": ("fits", "green"), "oom": ("out of memory", "red"), "failed": ("failed", "yellow")}
    text, style = words[tried.verdict]
    return Text(text, style=style)


def _compared_table(rows: tuple[Compared, ...]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("message", "predicted peak", "more"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        more = row.message_bytes - row.predicted_bytes
        shown = (
            format_bytes(row.message_bytes),
            format_bytes(row.predicted_bytes),
            format_bytes(more) if more > 0 else "",
        )
        table.add_row(row.name, *shown)
    return Padding(table, (1, 0, 0, 2))


def _tried_table(rows: tuple[Tried, ...]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", show_edge=False)
    table.add_column("tried", overflow="fold")
    table.add_column("", no_wrap=True)
    table.add_column("reserved", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        reserved = "" if row.reserved_bytes is None else format_bytes(row.reserved_bytes)
        table.add_row(row.what, _verdict(row), reserved, row.detail)
    return Padding(table, (1, 0, 1, 2))


def _line(label: str, text: Text) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=13, style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, text)
    return table


def _next_step(explanation: Explanation) -> str:
    return (
        f"foretell explain-oom FILE -- YOUR_SCRIPT.py ... runs the script on a virtual {explanation.cards[0]}, finds "
        "what "
        "differs from the prediction, and tries what helps"
    )
