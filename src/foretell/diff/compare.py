"""The `Difference` of two summaries: what changed, largest first, and a sentence that sums it up."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeVar

from foretell.diff.summary import PEAKS, Held, Summary
from foretell.records import OutsidePeak, StepPeak
from foretell.report.holders import OUTSIDE, layers_as_one, words_of
from foretell.units import format_bytes

_CATEGORY_WORDS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "activation": "activations",
    "input": "inputs",
    "temporary": "temporaries",
    "workspace": "workspaces",
}
_MOST = 0.5
_CLEARLY = 2
"""A change must exceed this multiple of the floor, because smaller holders may be missing from a summary."""
_TRIED = 20
"""How many modules and prefixes to examine for a renaming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The bytes of one thing, before and after."""

    name: str
    before_bytes: int
    after_bytes: int
    count: int = 1
    """How many things it stands for, whose names differ only in numbers."""

    @property
    def bytes(self) -> int:
        return self.after_bytes - self.before_bytes

    @property
    def share(self) -> float | None:
        """The fraction of the size before; None if there was nothing."""
        return self.bytes / self.before_bytes if self.before_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange(Change):
    """Blocks at the peak that have all of this in common; `name` is the module."""

    operator: str | None
    category: str
    tensor: str | None
    """The parameter or buffer itself, or the one whose gradient or optimizer state this is."""
    phase: str
    before_count: int
    after_count: int
    where: str | None
    """`file:line` of the largest of them, after; before, if there are none left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    row: StepPeak | OutsidePeak
    """Of the second run."""
    allocated: Change
    reserved: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Only changes, largest first; None if one of the two has no such detail."""

    before: Summary
    after: Summary
    facts: tuple[FactChange, ...]
    peaks: tuple[Change, ...]
    """All of them, in the order of PEAKS, including unchanged ones."""
    categories: tuple[Change, ...] | None
    modules: tuple[Change, ...] | None
    blocks: tuple[BlockChange, ...] | None
    steps: tuple[RowChange, ...]
    outside_steps: tuple[RowChange, ...] | None
    notes: tuple[str, ...]

    def peak(self, name: str) -> Change:
        return next(change for change in self.peaks if change.name == name)


def compare(before: Summary, after: Summary) -> Difference:
    notes = _missing(before, after)
    facts = _facts(before, after)
    renamed = _renaming(before, after)
    if renamed is not None:
        before = _with_modules(before, *renamed)
        notes.append(f"modules below {renamed[0]} are compared with those below {renamed[1]} (renamed)")
    categories = modules = blocks = None
    if before.categories is not None and after.categories is not None:
        categories = _changes(before.categories, after.categories)
    if before.modules is not None and after.modules is not None:
        floor = max(before.modules_floor_bytes, after.modules_floor_bytes)
        modules = _changes(_named(before.modules), _named(after.modules), floor=floor)
        if floor:
            notes.append(f"modules of at most {format_bytes(floor)} are listed only in part")
    if before.blocks is not None and after.blocks is not None:
        floor = max(before.blocks_floor_bytes, after.blocks_floor_bytes)
        blocks = _block_changes(before.blocks, after.blocks, floor)
        if floor:
            notes.append(f"blocks of at most {format_bytes(floor)} are not compared: the list is incomplete")
    outside = None
    if before.outside_steps is not None and after.outside_steps is not None:
        outside = _row_changes(_outside(before), _outside(after))
    return Difference(
        before=before,
        after=after,
        facts=facts,
        peaks=tuple(
            Change(name=name, before_bytes=before.peaks[name], after_bytes=after.peaks[name])
            for name in PEAKS
            if name in before.peaks and name in after.peaks
        ),
        categories=categories,
        modules=modules,
        blocks=blocks,
        steps=_row_changes({step.index: step for step in before.steps}, {step.index: step for step in after.steps}),
        outside_steps=outside,
        notes=tuple(notes),
    )


def grown_over(difference: Difference, limit: int | float) -> str | None:
    """Why the growth exceeds the limit (an int in bytes, a float as a fraction), or None if it does not."""
    if difference.after.verdict == "oom" and difference.before.verdict != "oom":
        return "now runs out of memory"
    for name in ("reserved_bytes", "device_bytes"):
        change = difference.peak(name)
        allowed = limit * change.before_bytes if isinstance(limit, float) else limit
        if change.bytes > allowed:
            what = name.removesuffix("_bytes")
            return f"{what} memory grew by {format_bytes(change.bytes)}, more than {format_bytes(round(allowed))}"
    return None


# --- parts ------------------------------------------------------------------------------------------------------------


def _missing(before: Summary, after: Summary) -> list[str]:
    notes = []
    for summary in (before, after):
        missing = [what for what in ("categories", "modules", "blocks") if getattr(summary, what) is None]
        if missing:
            words = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
            notes.append(f"{summary.path} has no {words}, so they are not compared")
        if summary.verdict == "oom":
            notes.append(f"{summary.path} ran out of memory: its numbers are what it held then, not what it needs")
    return notes


def _facts(before: Summary, after: Summary) -> tuple[FactChange, ...]:
    are_evaluations_known = before.outside_steps is not None and after.outside_steps is not None

    def of(summary: Summary) -> dict[str, str]:
        evaluations = [row for row in summary.outside_steps or () if row.kind == "evaluation"]
        oom = "out of memory" if summary.oom_step is None else f"out of memory in step {summary.oom_step}"
        return {
            "verdict": oom if summary.verdict == "oom" else summary.verdict,
            "card": summary.gpu,
            "torch": summary.torch,
            "CUDA": summary.cuda or "unknown",
            "engine": summary.engine,
            "foretell": summary.foretell or "unknown",
            "command": shlex.join(without_folder(summary.command)),
            "steps": str(len(summary.steps)),
            "evaluations": str(len(evaluations)) if are_evaluations_known else "unknown",
        }

    pairs = zip(of(before).items(), of(after).values(), strict=True)
    return tuple(FactChange(name=name, before=old, after=new) for (name, old), new in pairs if old != new)


def without_folder(command: Sequence[str]) -> list[str]:
    """Strip the folder of the interpreter, which does not count as a change."""
    return [PurePath(command[0]).name, *command[1:]] if command else []


def _named(modules: Mapping[str | None, int]) -> dict[str, int]:
    return {OUTSIDE if module is None else module: size for module, size in modules.items()}


def _changes(before: Mapping[str, int], after: Mapping[str, int], *, floor: int = 0) -> tuple[Change, ...]:
    """A module that one of them does not list held at most the floor."""
    changes = []
    for name in before.keys() | after.keys():
        change = Change(name=name, before_bytes=before.get(name, 0), after_bytes=after.get(name, 0))
        is_in_both = name in before and name in after
        if change.bytes and (is_in_both or abs(change.bytes) > _CLEARLY * floor):
            changes.append(change)
    return _largest_first(changes)


def _block_changes(before: Sequence[Held], after: Sequence[Held], floor: int) -> tuple[BlockChange, ...]:
    """Only blocks above the floor, which both sides list completely. An edit above a line moves it, so that blocks are
    the same wherever they are allocated."""
    groups: dict[Held, list[list[int]]] = defaultdict(lambda: [[], []])
    places: dict[Held, tuple[int, int, str]] = {}
    for side, blocks in enumerate((before, after)):
        for block in blocks:
            if block.bytes > floor:
                key = replace(block, bytes=0, where=None)
                groups[key][side].append(block.bytes)
                if block.where is not None:
                    places[key] = max(places.get(key, (0, 0, "")), (side, block.bytes, block.where))
    changes = [
        BlockChange(
            name=key.module or OUTSIDE,
            operator=key.operator,
            category=key.category,
            tensor=key.name,
            phase=key.phase,
            before_bytes=sum(old),
            after_bytes=sum(new),
            before_count=len(old),
            after_count=len(new),
            where=places[key][2] if key in places else None,
        )
        for key, (old, new) in groups.items()
        if (sum(old), len(old)) != (sum(new), len(new)) and ((old and new) or max(old + new) > _CLEARLY * floor)
    ]
    return _largest_first(changes)


_Row = TypeVar("_Row", StepPeak, OutsidePeak)


def _row_changes(before: Mapping[object, _Row], after: Mapping[object, _Row]) -> tuple[RowChange, ...]:
    """Rows present in both, by their key."""
    changes = []
    for key, new in after.items():
        if key not in before:
            continue
        allocated, reserved = (
            Change(name=new.place, before_bytes=getattr(before[key], name), after_bytes=getattr(new, name))
            for name in ("peak_allocated_bytes", "peak_reserved_bytes")
        )
        if allocated.bytes or reserved.bytes:
            changes.append(RowChange(row=new, allocated=allocated, reserved=reserved))
    # A stable sort: equal changes stay in the order in which they ran.
    return tuple(sorted(changes, key=lambda change: (-abs(change.reserved.bytes), -abs(change.allocated.bytes))))


def _outside(summary: Summary) -> dict[object, OutsidePeak]:
    """What follows the last step is compared with what follows the last step, however many there are."""
    last = summary.steps[-1].index if summary.steps else None
    return {
        (row.kind, "last" if row.after_step is not None and row.after_step == last else row.after_step): row
        for row in summary.outside_steps or ()
    }


_Kind = TypeVar("_Kind", bound=Change)


def _largest_first(changes: Iterable[_Kind]) -> tuple[_Kind, ...]:
    return tuple(sorted(changes, key=lambda change: (-abs(change.bytes), repr(change))))


# --- modules under another name ---------------------------------------------------------------------------------------


def _renaming(before: Summary, after: Summary) -> tuple[str, str] | None:
    """A prefix whose replacement maps most removed modules to added ones."""
    old, new = ({m for m in (s.modules or ()) if m is not None} for s in (before, after))
    gone, come = old - new, new - old
    if len(gone) < 2 or len(come) < 2:
        return None
    few = sorted(gone)[:: max(1, len(gone) // _TRIED)]
    pairs = Counter(pair for module in few for other in come if (pair := _differing_prefix(module, other)) is not None)
    fitting = {pair: sum(_renamed(module, *pair) in come for module in gone) for pair, _ in pairs.most_common(_TRIED)}
    best = max(fitting, key=lambda pair: (fitting[pair], pair), default=None)
    return best if best is not None and fitting[best] > _MOST * max(len(gone), len(come)) else None


def _differing_prefix(module: str, other: str) -> tuple[str, str] | None:
    old, new = module.split("."), other.split(".")
    while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
        old.pop()
        new.pop()
    # Without a common suffix there is no evidence: a root module of another class is found through its children.
    return (".".join(old), ".".join(new)) if len(old) < module.count(".") + 1 else None


def _renamed(module: str | None, old: str, new: str) -> str | None:
    if module is not None and (module == old or module.startswith(old + ".")):
        return new + module[len(old) :]
    return module


def _with_modules(summary: Summary, old: str, new: str) -> Summary:
    modules: Counter[str | None] = Counter()
    for module, size in (summary.modules or {}).items():
        modules[_renamed(module, old, new)] += size
    blocks = summary.blocks
    return replace(
        summary,
        modules=dict(modules),
        blocks=None if blocks is None else tuple(replace(b, module=_renamed(b.module, old, new)) for b in blocks),
    )


# --- for people -------------------------------------------------------------------------------------------------------


def folded(changes: Sequence[_Kind]) -> tuple[_Kind, ...]:
    """Folds layers that differ only in their number: `model.layers.*.mlp`."""
    groups: dict[object, list[_Kind]] = defaultdict(list)
    for change in changes:
        groups[_alike(change)].append(change)
    return _largest_first(_together(group) for group in groups.values())


def _alike(change: Change) -> object:
    name = layers_as_one(change.name)
    if isinstance(change, BlockChange):
        return name, change.operator, change.category, layers_as_one(change.tensor or ""), change.phase
    return name


def _together(group: Sequence[_Kind]) -> _Kind:
    first = group[0]
    if len(group) == 1:
        return first

    def total(key: Callable[[_Kind], int]) -> int:
        return sum(map(key, group))

    together = replace(
        first,
        name=layers_as_one(first.name),
        before_bytes=total(lambda change: change.before_bytes),
        after_bytes=total(lambda change: change.after_bytes),
        count=len(group),
    )
    if isinstance(together, BlockChange):
        return replace(
            together,
            tensor=layers_as_one(together.tensor) if together.tensor else None,
            before_count=sum(change.before_count for change in group if isinstance(change, BlockChange)),
            after_count=sum(change.after_count for change in group if isinstance(change, BlockChange)),
        )
    return together


def described(change: BlockChange) -> tuple[str, str, str]:
    """What the blocks are, where they come from, and how many there are."""
    counts = (change.before_count, change.after_count)
    return (
        f"{words_of(change.category)} {change.tensor or f'of {change.name}'}",
        f"{change.operator or 'unknown operator'}, {change.phase}",
        str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} -> {counts[1]}",
    )


def signed(num_bytes: int) -> str:
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes)}" if num_bytes else "same"


def percent(change: Change) -> str:
    if change.share is None:
        return "new" if change.bytes else ""
    if change.after_bytes == 0 and change.bytes:
        return "gone"
    digits = 0 if abs(change.share) >= 0.095 else 1
    return f"{100 * change.share:+.{digits}f} %"


def sentence(difference: Difference) -> str:
    """For example: +1.20 GiB (+14 %) reserved, mostly activations of model.layers.*"""
    turn = _turn(difference)
    if turn == 0:
        return _growth(difference)
    words = "now runs out of memory" if turn > 0 else "now fits"
    # Memory held at the OOM is not the need, so a decrease there means nothing.
    is_telling = turn * difference.peak("reserved_bytes").bytes > 0
    return f"{words}: {_growth(difference)}" if is_telling else words


def outlook(difference: Difference) -> int:
    """1: worse, -1: better, 0: the same. A changed verdict outweighs bytes."""
    change = difference.peak("reserved_bytes").bytes
    return _turn(difference) or (change > 0) - (change < 0)


def _turn(difference: Difference) -> int:
    """1: it now runs out of memory, -1: it now fits."""
    return (difference.after.verdict == "oom") - (difference.before.verdict == "oom")


def _growth(difference: Difference) -> str:
    reserved, allocated = difference.peak("reserved_bytes"), difference.peak("allocated_bytes")
    if not reserved.bytes and not allocated.bytes:
        device = difference.peak("device_bytes")
        return "reserved and allocated are unchanged" + (f", device {signed(device.bytes)}" if device.bytes else "")
    if not reserved.bytes:
        head, main = f"{signed(allocated.bytes)} ({percent(allocated)}) allocated, reserved unchanged", allocated
    else:
        head, main = f"{signed(reserved.bytes)} ({percent(reserved)}) reserved", reserved
    why = _why(difference, main)
    return f"{head}, mostly {why}" if why else head


def _why(difference: Difference, main: Change) -> str | None:
    sign = 1 if main.bytes > 0 else -1
    allocated = difference.peak("allocated_bytes")
    if sign * allocated.bytes < _MOST * sign * main.bytes:
        return "cached or fragmented memory"
    category = _most(difference.categories or (), sign)
    if category is None:
        return None
    words = _CATEGORY_WORDS.get(category.name, category.name)
    own = [change for change in difference.blocks or () if change.category == category.name]
    places: Counter[str] = Counter()
    for change in own:
        places[_up_to_the_number(change.name)] += change.bytes
    changes = [Change(name=name, before_bytes=0, after_bytes=size) for name, size in places.items()]
    place = _most(changes, sign)
    is_telling = place is not None and place.name != OUTSIDE and sign * place.bytes > _MOST * sign * category.bytes
    return f"{words} of {place.name}" if is_telling and place is not None else words


def _most(changes: Sequence[_Kind], sign: int) -> _Kind | None:
    """The change that makes up more than half of those with the same sign."""
    same = [change for change in changes if sign * change.bytes > 0]
    largest = max(same, key=lambda change: abs(change.bytes), default=None)
    if largest is None or abs(largest.bytes) <= _MOST * sum(abs(change.bytes) for change in same):
        return None
    return largest


def _up_to_the_number(module: str) -> str:
    head, star, _ = layers_as_one(module).partition(".*")
    return head + star
