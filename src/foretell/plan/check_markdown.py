"""A check as Markdown, for a pull request: the verdict, sizes before and after, and what grew. A comment on GitHub has
at most 65,536 characters; rows and names are limited so that this has far fewer, whatever the script."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence

from foretell.diff import Held
from foretell.diff.compare import BlockChange, Change, Difference, folded, percent, sentence, signed, without_folder
from foretell.errors import ForetellError
from foretell.plan.check import MEASURES, Check, Rule, headline, size_of
from foretell.records import Estimate
from foretell.report.holders import OUTSIDE, blocks_at_peak, holders, layers_as_one, words_of
from foretell.report.markdown import code, prose, table
from foretell.report.places import short_place
from foretell.units import format_bytes

_ROWS = 10
_MOST_CAVEATS = 8
_MARKS = {"within": "✅", "over": "❌", "oom": "❌", "incomplete": "⚠️"}
_LEAST_SHARE = 0.005
"""Of the allocated peak: smaller changes are not worth a row."""


def render(check: Check) -> str:
    estimate, difference = check.estimate, check.difference
    parts = [
        [f"### {_MARKS[check.verdict]} GPU memory: {prose(headline(check))}"],
        [code(shlex.join(without_folder(estimate.command)), most=200)],
        [f"- {'✅' if rule.is_kept else '❌'} {prose(str(rule))}" for rule in check.rules],
        table(["", ">before", ">now", ">growth", ">limit"], [_sizes(check, measure) for measure in MEASURES]),
        _ran_out(estimate),
        _held(estimate) if difference is None else _grown(difference),
        _caveats([*check.caveats, *(difference.notes if difference and not estimate.oom else ()), *estimate.caveats]),
        [f"<sub>{_about(check)}</sub>"],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def render_failure(error: ForetellError, command: Sequence[str]) -> str:
    """If there is no estimate to check."""
    what = "the script itself failed" if error.exit_code == 1 else "no estimate"
    parts = [f"### ❌ GPU memory not checked: {what}", code(shlex.join(command), most=200), prose(str(error), most=600)]
    return "\n\n".join(parts) + "\n"


# --- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(check: Check, measure: str) -> list[str]:
    estimate, name = check.estimate, f"{measure}_bytes"
    now = size_of(estimate, measure)  # type: ignore[arg-type]
    before = check.difference.before.peaks.get(name) if check.difference is not None else None
    limits = [_most_bytes(rule, before) for rule in check.rules if rule.of == measure]
    growth = ""
    if before is not None and now is not None:
        change = Change(name=name, before_bytes=before, after_bytes=now)
        growth = f"{signed(change.bytes)} ({percent(change)})" if change.bytes else "same"
    return [
        f"**{measure}**" if limits else measure,
        "" if before is None else format_bytes(before),
        "unknown" if now is None else format_bytes(now),
        growth,
        format_bytes(min(limits)) if limits else "",
    ]


def _most_bytes(rule: Rule, before: int | None) -> int:
    return rule.allowed_bytes + (before or 0 if rule.kind == "growth" else 0)


# --- where it ran out, what holds the memory, what grew ---------------------------------------------------------------


def _ran_out(estimate: Estimate) -> list[str]:
    oom, need = estimate.oom, estimate.need
    if oom is None:
        return []
    where = f", at {code(short_place(oom.where), most=60)}" if oom.where else ""
    message, _, _ = oom.message.partition(" If reserved")  # PyTorch's advice follows
    lines = [f"It ran out of memory in step {oom.step}, {oom.phase}{where}: {prose(message)}"]
    if need is not None and need.smallest_gpus:
        lines += ["", f"The smallest GPUs that it fits on: {prose(', '.join(need.smallest_gpus))}."]
    return lines


def _held(estimate: Estimate) -> list[str]:
    if estimate.attribution is None:
        return []
    found = holders(blocks_at_peak(estimate.attribution))
    rows = [
        [format_bytes(each.bytes), _what(each.category, each.num_blocks), *_place(each.module or OUTSIDE, each.where)]
        for each in found[:_ROWS]
    ]
    when = "held the memory when it ran out" if estimate.oom is not None else "holds the memory at the peak"
    return [f"What {when}:", "", *table([">size", "what", "module", "line"], rows), *_more(found)]


def _grown(difference: Difference) -> list[str]:
    is_oom = difference.after.verdict == "oom"
    words = sentence(difference)
    lines = [] if is_oom else [f"{prose(words[:1].upper() + words[1:])}."]
    least = _LEAST_SHARE * difference.peak("allocated_bytes").after_bytes
    # JSON lists only the largest blocks. Of its modules, which are sums, far less is missing.
    is_whole = not (difference.before.blocks_floor_bytes or difference.after.blocks_floor_bytes)
    changes = _by_place(difference.blocks or ()) if is_whole else _by_module(difference)
    found = [change for change in changes if abs(change.bytes) >= least]
    if not found:
        return lines
    rows = [
        [signed(each.bytes), percent(each), _what(each.category, each.after_count), *_place(each.name, each.where)]
        for each in found[:_ROWS]
    ]
    if is_oom:
        lines = ["What was held then, compared with the peak of the baseline:"]
    return [*lines, "", *table([">change", ">", "what", "module", "line"], rows), *_more(found)]


def _by_place(changes: Sequence[BlockChange]) -> list[BlockChange]:
    """Blocks of one category, module and line together; layers that differ only in their number are one module."""
    groups: dict[tuple[str, str, str | None], list[BlockChange]] = defaultdict(list)
    for change in changes:
        groups[change.category, layers_as_one(change.name), change.where].append(change)
    found = [
        BlockChange(
            name=name if len({each.name for each in group}) > 1 else group[0].name,
            category=category,
            where=where,
            before_bytes=sum(each.before_bytes for each in group),
            after_bytes=sum(each.after_bytes for each in group),
            before_count=sum(each.before_count for each in group),
            after_count=sum(each.after_count for each in group),
            operator=None,
            tensor=None,
            phase="",
        )
        for (category, name, where), group in groups.items()
    ]
    return sorted(found, key=lambda change: -abs(change.bytes))


def _by_module(difference: Difference) -> list[BlockChange]:
    """Modules, each with the line of the largest block it holds after the change."""
    groups: dict[str, list[Held]] = defaultdict(list)
    for block in difference.after.blocks or ():
        groups[layers_as_one(block.module or OUTSIDE)].append(block)
    found = []
    for change in folded(difference.modules or ()):
        held = groups.get(layers_as_one(change.name), [])
        largest = max(held, key=lambda block: block.bytes, default=None)
        found.append(
            BlockChange(
                name=change.name,
                category="",
                where=largest.where if largest else None,
                before_bytes=change.before_bytes,
                after_bytes=change.after_bytes,
                before_count=1,
                after_count=1,
                operator=None,
                tensor=None,
                phase="",
            )
        )
    return found


def _what(category: str, count: int) -> str:
    return prose(words_of(category)) + (f" x{count}" if count > 1 else "")


def _place(module: str, where: str | None) -> list[str]:
    return [code(module), code(short_place(where), most=60) if where else ""]


def _more(found: Sequence[object]) -> list[str]:
    return ["", f"and {len(found) - _ROWS} more"] if len(found) > _ROWS else []


# --- the rest ---------------------------------------------------------------------------------------------------------


def _caveats(caveats: Sequence[str]) -> list[str]:
    if not caveats:
        return []
    lines = [f"- {prose(each)}" for each in caveats[:_MOST_CAVEATS]]
    if len(caveats) > _MOST_CAVEATS:
        lines.append(f"- and {len(caveats) - _MOST_CAVEATS} more")
    count = "1 caveat" if len(caveats) == 1 else f"{len(caveats)} caveats"
    return [f"<details><summary>{count}</summary>", "", *lines, "", "</details>"]


def _about(check: Check) -> str:
    estimate, difference = check.estimate, check.difference
    steps = "1 step" if len(estimate.steps) == 1 else f"{len(estimate.steps)} steps"
    facts = [estimate.gpu.device_name, f"torch {estimate.torch_version}", steps]
    if difference is not None:
        facts.append(f"baseline {difference.before.path}")
    facts.append(f"foretell {estimate.foretell_version}" if estimate.foretell_version else "foretell")
    return " · ".join(prose(fact, most=100) for fact in facts)
