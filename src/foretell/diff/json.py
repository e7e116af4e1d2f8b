"""A difference as JSON, schema `foretell.diff/1`: keys are added, never changed in meaning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foretell.diff.compare import BlockChange, Change, Difference, RowChange, sentence
from foretell.diff.summary import Summary
from foretell.records import StepPeak
from foretell.report.holders import OUTSIDE

SCHEMA = "foretell.diff/1"


def render(difference: Difference) -> str:
    return json.dumps(document(difference), indent=2)


def document(difference: Difference) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "summary": sentence(difference),
        "before": _run(difference.before),
        "after": _run(difference.after),
        "peak": {change.name: _sizes(change) for change in difference.peaks},
        "by_category": _list(difference.categories, "category"),
        "by_module": _list(difference.modules, "module"),
        "blocks": None if difference.blocks is None else [_block(change) for change in difference.blocks],
        "steps": [_row(change) for change in difference.steps],
        "outside_steps": None if difference.outside_steps is None else [_row(c) for c in difference.outside_steps],
        "facts": {fact.name: {"before": fact.before, "after": fact.after} for fact in difference.facts},
        "notes": list(difference.notes),
    }


def _run(summary: Summary) -> dict[str, Any]:
    return {
        "path": summary.path,
        "verdict": summary.verdict,
        "engine": summary.engine,
        "gpu": summary.gpu,
        "torch": summary.torch,
        "cuda": summary.cuda,
        "foretell": summary.foretell,
        "command": list(summary.command),
    }


def _sizes(change: Change) -> dict[str, int]:
    return {"before": change.before_bytes, "after": change.after_bytes, "change": change.bytes}


def _row(change: RowChange) -> dict[str, Any]:
    row = change.row
    place = {"index": row.index} if isinstance(row, StepPeak) else {"kind": row.kind, "after_step": row.after_step}
    return {**place, "allocated_bytes": _sizes(change.allocated), "reserved_bytes": _sizes(change.reserved)}


def _list(changes: Sequence[Change] | None, key: str) -> list[dict[str, Any]] | None:
    if changes is None:
        return None
    return [{key: _name(change), **_sizes(change)} for change in changes]


def _name(change: Change) -> str | None:
    return None if change.name == OUTSIDE else change.name


def _block(change: BlockChange) -> dict[str, Any]:
    return {
        "module": _name(change),
        "operator": change.operator,
        "category": change.category,
        "name": change.tensor,
        "phase": change.phase,
        "where": change.where,
        "bytes": _sizes(change),
        "count": {
            "before": change.before_count,
            "after": change.after_count,
            "change": change.after_count - change.before_count,
        },
    }
