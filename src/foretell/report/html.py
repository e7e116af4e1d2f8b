"""The HTML report: what holds the memory, when, and what to change, as one file that needs no network.

The page itself is built from web/report (`make page`) into page.html. This module writes its data: integer columns,
and every string once. The browser computes the timeline from the blocks.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretell import __version__
from foretell.records import CATEGORIES, Advice, Attribution, BlockKind, Blocks, Cause, Estimate, Segment
from foretell.report import causes, performance, ranks
from foretell.report.advice_text import price
from foretell.report.batches import batch_rows, order_words
from foretell.report.headline import label_of
from foretell.report.holders import blocks_at_peak, by_category
from foretell.report.steps import peak_words, step_lines
from foretell.rules.capacity import capacity_of

SCHEMA = "foretell.page/1"
_TEMPLATE = Path(__file__).with_name("page.html")
_MOST_OTHER_RANKS = 7
"""Ranks that need the same are one; a larger job has few kinds, or the page would be too large."""
_TITLE = "<title>foretell</title>"
_DATA = '<script type="application/octet-stream" id="data"></script>'


def render(estimate: Estimate, attribution: Attribution, *, other_ranks: Sequence[Estimate] = ()) -> str:
    """`other_ranks`: estimates of ranks that the reader can pick instead, with their attribution."""
    verdict = "fits" if estimate.verdict == "fits" else "out of memory"
    largest_first = sorted(other_ranks, key=lambda each: -each.peak.device_bytes)
    others = [each for each in largest_first if each.attribution is not None][:_MOST_OTHER_RANKS]
    return embed(
        {
            "view": "report",
            **_one(estimate, attribution),
            "world": _world(estimate, [estimate, *others]) if estimate.world else None,
            "others": [_one(each, each.attribution) for each in others if each.attribution is not None],
        },
        title=f"foretell: {verdict} on {estimate.gpu.device_name}",
    )


def _one(estimate: Estimate, attribution: Attribution) -> dict[str, Any]:
    return {
        "estimate": _estimate(estimate),
        "capacity": _capacity(estimate),
        "time": performance.page(estimate.performance) if estimate.performance else None,
        "attribution": columns(attribution),
    }


def _world(estimate: Estimate, shown: Sequence[Estimate]) -> dict[str, Any]:
    """The table of ranks; `shown` are those that can be picked."""
    assert estimate.world is not None
    numbers = [each.world.worst_rank for each in shown if each.world is not None]
    return {
        "title": ranks.how_many(estimate.world),
        "rows": [
            {
                "ranks": ranks.ranges(rank.stands_for),
                "remark": ranks.remark(rank),
                "peak": {**asdict(rank.peak), "device_bytes": rank.peak.device_bytes},
                "spare_bytes": rank.spare_bytes,
                **_picked(shown, numbers.index(rank.rank) if rank.rank in numbers else None),
            }
            for rank in estimate.ranks
        ],
    }


def _picked(shown: Sequence[Estimate], at: int | None) -> dict[str, Any]:
    attribution = shown[at].attribution if at is not None else None
    return {"view": at, "by_category": by_category(blocks_at_peak(attribution)) if attribution is not None else None}


def embed(document: Mapping[str, Any], *, title: str) -> str:
    """The page with this document embedded. `view` names the view in web/report that shows it."""
    text = json.dumps({"schema": SCHEMA, "version": __version__, **document}, separators=(",", ":"), allow_nan=False)
    # mtime=0: the same run gives the same file.
    packed = base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
    page = _TEMPLATE.read_text(encoding="utf-8")
    assert page.count(_TITLE) == page.count(_DATA) == 1, f"{_TEMPLATE.name} lacks a placeholder for title or data"
    # Base64 has no `<`, so nothing in the document can end the script element.
    filled = _DATA.replace("></", f">{packed}</")
    return page.replace(_TITLE, f"<title>{html.escape(title)}</title>").replace(_DATA, filled)


def _estimate(estimate: Estimate) -> dict[str, Any]:
    """Only what the page shows; the JSON report has the rest."""
    gpu = estimate.gpu
    return {
        "engine": estimate.engine,
        "verdict": estimate.verdict,
        "label": label_of(estimate),
        "gpu": {
            "name": gpu.name,
            "device_name": gpu.device_name,
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
            "total_bytes": gpu.total_bytes,
        },
        "of_rank": ranks.of_rank(estimate) if estimate.world else None,
        "torch": estimate.torch_version,
        "cuda": estimate.cuda_version,
        "peak": {**asdict(estimate.peak), "device_bytes": estimate.peak.device_bytes},
        "used_by_others_bytes": estimate.used_by_others_bytes,
        "is_context_given": estimate.is_context_given,
        "library_names": estimate.library_names,
        "steps": f"{len(estimate.steps)} run{peak_words(estimate)}",
        "peaks": [{"place": line.place, "sizes": line.sizes, "is_peak": line.is_peak} for line in step_lines(estimate)],
        "oom": asdict(estimate.oom) if estimate.oom else None,
        "batches": _batches(estimate),
        "ended_early": estimate.ended_early,
        "device_bytes": estimate.device_bytes,
        "together": asdict(estimate.together) if estimate.together else None,
        "need": asdict(estimate.need) if estimate.need else None,
        "need_unknown": estimate.need_unknown,
        "ended_by": asdict(estimate.ended_by) if estimate.ended_by else None,
        "causes": [_cause(each) for each in estimate.causes],
        "caveats": estimate.caveats,
        "command": estimate.command,
        "advice": [_advice(each) for each in estimate.advice or ()],
        "leaks": [asdict(leak) for leak in estimate.leaks],
    }


def _batches(estimate: Estimate) -> list[tuple[str, str]]:
    orders = [("orders", order_words(estimate.orders))] if estimate.orders is not None else []
    return [(title.capitalize(), words) for title, words in [*batch_rows(estimate), *orders]]


def _cause(cause: Cause) -> dict[str, Any]:
    values = asdict(cause)
    return {"title": causes.TITLES[values.pop("name")], **values}


def _advice(advice: Advice) -> dict[str, Any]:
    """The price says what the change does to the time of a step, too."""
    values = {**asdict(advice), "price": price(advice)}
    return {name: value for name, value in values.items() if name not in ("step_ms", "step_ms_before")}


def _capacity(estimate: Estimate) -> dict[str, int]:
    """Computed here, as for the terminal, so that the page has no formula of its own to disagree with it."""
    capacity = capacity_of(estimate)
    return {
        "available_bytes": capacity.available_bytes,
        "spare_bytes": capacity.spare_bytes(estimate.device_bytes),
        "reservable_bytes": capacity.reservable_bytes,
    }


def columns(attribution: Attribution) -> dict[str, Any]:
    strings = _Strings()
    blocks = Blocks.of(attribution.blocks)
    document = {
        "num_events": attribution.num_events,
        "peak_event": attribution.peak_event,
        "fragmentation_bytes": attribution.fragmentation_bytes,
        "slack_bytes": attribution.slack_bytes,
        "categories": CATEGORIES,
        "spans": {
            "begin": [span.begin for span in attribution.spans],
            "step": [span.step for span in attribution.spans],
            "phase": [strings.number(span.phase) for span in attribution.spans],
        },
        "reserved": {
            "event": [event for event, _ in attribution.reserved],
            "bytes": [num_bytes for _, num_bytes in attribution.reserved],
        },
        "blocks": {
            "begin": _differences(blocks.begin),
            # Lifetime rather than end: steps repeat, so gzip finds the same numbers again. 0: to the end.
            "lifetime": [0 if e < 0 else e - b for b, e in zip(blocks.begin, blocks.end, strict=True)],
            "bytes": blocks.bytes.tolist(),
            "rounding": [b - r for b, r in zip(blocks.bytes, blocks.requested_bytes, strict=True)],
            "step": blocks.step.tolist(),
            "label": blocks.kind.tolist(),
        },
        "segments": _segments(attribution.segments),
    }
    return {**document, "labels": _labels(blocks.kinds, strings), "strings": strings.texts}


def _segments(segments: Sequence[Segment]) -> dict[str, list[int]]:
    parts = [part for segment in segments for part in segment.parts]
    return {
        "address": [segment.address for segment in segments],
        "bytes": [segment.bytes for segment in segments],
        "is_small": [int(segment.is_small) for segment in segments],
        "num_parts": [len(segment.parts) for segment in segments],
        "part_offset": [offset for offset, _, _ in parts],
        "part_bytes": [num_bytes for _, num_bytes, _ in parts],
        # Block number plus 1; 0: free.
        "part_block": [0 if block is None else block + 1 for _, _, block in parts],
    }


def _differences(ascending: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *ascending], ascending, strict=False)]


class _Strings:
    """A string table. Index 0 is None."""

    def __init__(self) -> None:
        self.texts: list[str | None] = [None]
        self._numbers: dict[str | None, int] = {None: 0}

    def number(self, text: str | None) -> int:
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


def _labels(kinds: Sequence[BlockKind], strings: _Strings) -> dict[str, list[int]]:
    """Everything about a block except its size and time, stored once."""
    named = {"category": [CATEGORIES.index(kind.category) for kind in kinds]}
    for field in ("name", "module", "operator", "phase", "where"):
        named[field] = [strings.number(getattr(kind, field)) for kind in kinds]
    return named
