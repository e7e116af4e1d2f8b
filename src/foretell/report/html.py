"""Who holds the memory, when, and what to change, as one HTML file that needs no network.

The page itself is built from web/report (`make page`) into page.html; what is written here is its data: columns of
integers, and every string once. The browser computes the rest: the levels of a timeline follow from the blocks.
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
from foretell.records import CATEGORIES, Attribution, Block, Estimate, Segment
from foretell.report import json as json_report

SCHEMA = "foretell.page/1"
_TEMPLATE = Path(__file__).with_name("page.html")
_TITLE = "<title>foretell</title>"
_DATA = '<script type="application/octet-stream" id="data"></script>'


def render(estimate: Estimate, attribution: Attribution) -> str:
    verdict = "fits" if estimate.verdict == "fits" else "out of memory"
    return embed(
        {
            "view": "report",
            "estimate": json_report.document(estimate),
            "library_names": estimate.library_names,
            "is_context_given": estimate.is_context_given,
            "advice": [asdict(each) for each in estimate.advice or ()],
            "leaks": [asdict(leak) for leak in estimate.leaks],
            "attribution": columns(attribution),
        },
        title=f"foretell: {verdict} on {estimate.gpu.device_name}",
    )


def embed(document: Mapping[str, Any], *, title: str) -> str:
    """The page with this document in it. `view` names the part of web/report that shows it."""
    text = json.dumps({"schema": SCHEMA, "version": __version__, **document}, separators=(",", ":"), allow_nan=False)
    # mtime=0: the same run gives the same file.
    packed = base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
    page = _TEMPLATE.read_text(encoding="utf-8")
    assert page.count(_TITLE) == page.count(_DATA) == 1, f"{_TEMPLATE.name} lacks the place of its title or its data"
    # Base64 has no `<`, so nothing in the document can end the script element.
    filled = _DATA.replace("></", f">{packed}</")
    return page.replace(_TITLE, f"<title>{html.escape(title)}</title>").replace(_DATA, filled)


def columns(attribution: Attribution) -> dict[str, Any]:
    strings = _Strings()
    labels = _Labels(strings)
    blocks = attribution.blocks
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
            "begin": _differences([block.begin for block in blocks]),
            # How long, rather than until when: steps repeat, so gzip finds the same numbers again. 0: to the end.
            "lifetime": [0 if block.end is None else block.end - block.begin for block in blocks],
            "bytes": [block.bytes for block in blocks],
            "rounding": [block.bytes - block.requested_bytes for block in blocks],
            "step": [block.step for block in blocks],
            "label": [labels.number(block) for block in blocks],
        },
        "segments": _segments(attribution.segments),
    }
    return {**document, "labels": labels.columns(), "strings": strings.texts}


def _segments(segments: Sequence[Segment]) -> dict[str, list[int]]:
    parts = [part for segment in segments for part in segment.parts]
    return {
        "address": [segment.address for segment in segments],
        "bytes": [segment.bytes for segment in segments],
        "is_small": [int(segment.is_small) for segment in segments],
        "num_parts": [len(segment.parts) for segment in segments],
        "part_offset": [offset for offset, _, _ in parts],
        "part_bytes": [num_bytes for _, num_bytes, _ in parts],
        # From 1; 0: free.
        "part_block": [0 if block is None else block + 1 for _, _, block in parts],
    }


def _differences(ascending: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *ascending], ascending, strict=False)]


class _Strings:
    """Each string once, by its number. 0 is None."""

    def __init__(self) -> None:
        self.texts: list[str | None] = [None]
        self._numbers: dict[str | None, int] = {None: 0}

    def number(self, text: str | None) -> int:
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


class _Labels:
    """What is said of a block but for its size and time, once: every step makes the same tensors at the same places."""

    FIELDS = ("name", "module", "operator", "phase", "where")

    def __init__(self, strings: _Strings) -> None:
        self._strings = strings
        self._numbers: dict[tuple[str | None, ...], int] = {}

    def number(self, block: Block) -> int:
        said = (block.category, block.name, block.module, block.operator, block.phase, block.where)
        return self._numbers.setdefault(said, len(self._numbers))

    def columns(self) -> dict[str, list[int]]:
        categories = {category: number for number, category in enumerate(CATEGORIES)}
        named: dict[str, list[int]] = {"category": [categories[said[0]] for said in self._numbers]}  # type: ignore[index]
        for column, field in enumerate(self.FIELDS, start=1):
            named[field] = [self._strings.number(said[column]) for said in self._numbers]
        return named
