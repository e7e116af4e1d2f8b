"""What holds the memory, for every report: at the peak by category, module and line, and over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from foretell.records import CATEGORIES, Attribution, Block, Blocks, Category, Phase

LISTED = 50
"""How many modules and blocks the JSON lists at most; a shorter list is complete."""
_MAX_POINTS = 400
OUTSIDE = "(outside modules)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Blocks of one kind allocated at one place; repeated layers count as one place."""

    bytes: int
    num_blocks: int
    category: Category
    module: str | None
    """`Net.layers.*.linear` stands for several layers."""
    where: str | None
    name: str | None
    """Set when there is only one block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment of the run: the highest of the events it represents."""

    event: int
    step: int
    phase: Phase
    allocated_bytes: int
    reserved_bytes: int
    by_category: tuple[int, ...]
    """In the order of CATEGORIES."""


def layers_as_one(path: str) -> str:
    """Folds repeated layers: `Net.layers.3.linear` becomes `Net.layers.*.linear`."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def words_of(category: str) -> str:
    return category.replace("_", " ")


def blocks_at_peak(attribution: Attribution) -> list[Block]:
    """Largest first."""
    return [attribution.blocks[number] for number in attribution.at_peak]


def by_category(blocks: Iterable[Block]) -> dict[Category, int]:
    """Every category, including empty ones."""
    sizes = dict.fromkeys(CATEGORIES, 0)
    for block in blocks:
        sizes[block.category] += block.bytes
    return sizes


def by_module(blocks: Iterable[Block]) -> list[tuple[str | None, int]]:
    """Largest first."""
    sizes: Counter[str | None] = Counter()
    for block in blocks:
        sizes[block.module] += block.bytes
    return sizes.most_common()


def holders(blocks: Iterable[Block]) -> list[Holder]:
    """Largest first."""
    groups: dict[tuple[Category, str | None, str | None], list[Block]] = {}
    for block in blocks:
        layers = layers_as_one(block.module) if block.module else None
        groups.setdefault((block.category, layers, block.where), []).append(block)
    found = [
        Holder(
            bytes=sum(block.bytes for block in group),
            num_blocks=len(group),
            category=category,
            module=module if len({block.module for block in group}) > 1 else group[0].module,
            where=where,
            name=group[0].name if len(group) == 1 else None,
        )
        for (category, module, where), group in groups.items()
    ]
    return sorted(found, key=lambda holder: -holder.bytes)


def timeline(attribution: Attribution, max_points: int = _MAX_POINTS) -> list[Point]:
    """At most `max_points` moments; every peak of the run is among them."""
    blocks = Blocks.of(attribution.blocks)
    categories = [CATEGORIES.index(kind.category) for kind in blocks.kinds]
    changes: list[tuple[int, int, int]] = []
    for begin, end, size, kind in zip(blocks.begin, blocks.end, blocks.bytes, blocks.kind, strict=True):
        changes.append((begin, categories[kind], size))
        if end >= 0:
            changes.append((end, categories[kind], -size))
    changes.sort()
    per_point = max(1, -(-attribution.num_events // max_points))
    sizes = [0] * len(CATEGORIES)
    points: list[Point] = []
    best: tuple[int, int, tuple[int, ...]] | None = None
    total = at = 0
    for begin in range(0, attribution.num_events, per_point):
        while at < len(changes) and changes[at][0] < begin + per_point:
            event, number, size = changes[at]
            sizes[number] += size
            total += size
            at += 1
            if best is None or total > best[0]:
                best = total, event, tuple(sizes)
        allocated, event, parts = best or (total, begin, tuple(sizes))
        best = None
        points.append(_point(attribution, event, allocated, parts))
    return points


def _point(attribution: Attribution, event: int, allocated: int, parts: tuple[int, ...]) -> Point:
    span = bisect_right(attribution.spans, event, key=lambda each: each.begin) - 1
    change = bisect_right(attribution.reserved, event, key=lambda each: each[0]) - 1
    return Point(
        event=event,
        step=attribution.spans[span].step if span >= 0 else 0,
        phase=attribution.spans[span].phase if span >= 0 else "other",
        allocated_bytes=allocated,
        reserved_bytes=attribution.reserved[change][1] if change >= 0 else 0,
        by_category=parts,
    )
