"""The estimate as JSON, schema `foretell.estimate/1`, written and read: keys are added, never changed in meaning."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from foretell import gpus
from foretell.errors import TraceError, UsageError
from foretell.plain import from_plain, parse_json, to_plain
from foretell.records import CATEGORIES, Attribution, Estimate, PeakMemory, RankEstimate
from foretell.report import performance
from foretell.report.holders import LISTED, blocks_at_peak, by_category, by_module, timeline
from foretell.rules.capacity import capacity_of, steps_until_full

SCHEMA = "foretell.estimate/1"
_OF_A_BLOCK = ("bytes", "category", "name", "module", "operator", "phase", "step", "where")


def render(estimate: Estimate) -> str:
    return json.dumps(document(estimate), indent=2)


def document(estimate: Estimate) -> dict[str, Any]:
    gpu, peak, capacity = estimate.gpu, estimate.peak, capacity_of(estimate)
    return {
        "schema": SCHEMA,
        "foretell": estimate.foretell_version,
        "engine": estimate.engine,
        "verdict": estimate.verdict,
        "gpu": {
            "name": gpu.name,
            "total_bytes": gpu.total_bytes,
            "device_name": gpu.device_name,
            **{each.name: getattr(gpu, each.name) for each in fields(gpu)},
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
        },
        "torch": estimate.torch_version,
        "cuda": estimate.cuda_version,
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "library_bytes": peak.library_bytes,
            "context_bytes": peak.context_bytes,
            "device_bytes": peak.device_bytes,
            "device_low_bytes": peak.device_low_bytes,
            "device_high_bytes": peak.device_high_bytes,
            "request_bytes": peak.request_bytes,
            **(_at_peak(estimate.attribution) if estimate.attribution else {}),
        },
        "causes": [asdict(each) for each in estimate.causes],
        "evidence": asdict(estimate.evidence) if estimate.evidence else None,
        "library_names": list(estimate.library_names),
        "is_context_given": estimate.is_context_given,
        "used_by_others_bytes": estimate.used_by_others_bytes,
        "capacity": {
            "available_bytes": capacity.available_bytes,
            "reservable_bytes": capacity.reservable_bytes,
            "spare_bytes": capacity.spare_bytes(estimate.device_bytes),
        },
        "together": asdict(estimate.together) if estimate.together else None,
        "peak_step": estimate.peak_step,
        "peak_place": estimate.peak_place,
        "steps": [asdict(step) for step in estimate.steps],
        "outside_steps": [asdict(each) for each in estimate.outside_steps],
        "oom": asdict(estimate.oom) if estimate.oom else None,
        "need": asdict(estimate.need) if estimate.need else None,
        "need_unknown": estimate.need_unknown,
        "complete": estimate.complete,
        "ended_by": asdict(estimate.ended_by) if estimate.ended_by else None,
        "phases": list(estimate.phases_seen),
        "ended_early": list(estimate.ended_early),
        "num_unknown_reads": estimate.num_unknown_reads,
        "caveats": list(estimate.caveats),
        "redirected_writes": list(estimate.redirected_writes),
        "not_sent": list(estimate.not_sent),
        "isolation": asdict(estimate.isolation) if estimate.isolation else None,
        "advice": None if estimate.advice is None else [asdict(each) for each in estimate.advice],
        "batches": asdict(estimate.batches) if estimate.batches else None,
        "orders": asdict(estimate.orders) if estimate.orders else None,
        "world": asdict(estimate.world) if estimate.world else None,
        "ranks": [_rank(each) for each in estimate.ranks],
        "leaks": [asdict(leak) for leak in estimate.leaks],
        "steps_until_full": steps_until_full(estimate),
        "command": list(estimate.command),
        **(performance.document(estimate.performance) if estimate.performance else {}),
        "timeline": _over_time(estimate),
        "seconds": {"total": 0.0, "script": 0.0, **{k: round(v, 3) for k, v in estimate.seconds.items()}},
    }


def _rank(rank: RankEstimate) -> dict[str, Any]:
    return {
        **asdict(rank),
        "stands_for": ",".join(map(str, rank.stands_for)),
        "peak": {**asdict(rank.peak), "device_bytes": rank.peak.device_bytes},
    }


def _at_peak(attribution: Attribution) -> dict[str, Any]:
    """`by_category` sums to the allocated peak; with slack and fragmentation, to the reserved one."""
    blocks = blocks_at_peak(attribution)
    return {
        "by_category": by_category(blocks),
        "fragmentation_bytes": attribution.fragmentation_bytes,
        "slack_bytes": attribution.slack_bytes,
        "by_module": [{"module": module, "bytes": size} for module, size in by_module(blocks)[:LISTED]],
        "blocks": [{name: getattr(block, name) for name in _OF_A_BLOCK} for block in blocks[:LISTED]],
        "num_blocks": len(blocks),
    }


def _over_time(estimate: Estimate) -> dict[str, Any] | None:
    """Memory over the run and utilization over a step, as far as they are known."""
    memory = _timeline(estimate.attribution) if estimate.attribution else {}
    activity = performance.timeline(estimate.performance) if estimate.performance else {}
    return {**memory, **activity} or None


def _timeline(attribution: Attribution) -> dict[str, Any]:
    points = timeline(attribution)
    return {
        "event": [point.event for point in points],
        "step": [point.step for point in points],
        "phase": [point.phase for point in points],
        "allocated_bytes": [point.allocated_bytes for point in points],
        "reserved_bytes": [point.reserved_bytes for point in points],
        "by_category": {
            name: [point.by_category[number] for point in points] for number, name in enumerate(CATEGORIES)
        },
    }


# --- reading ----------------------------------------------------------------------------------------------------------

_OTHER_NAMES = {
    "foretell": "foretell_version", "torch": "torch_version", "cuda": "cuda_version", "phases": "phases_seen",
}  # fmt: skip


def read(text: str) -> Estimate:
    """Read an estimate, without attribution and step time, of which JSON has only sums and the largest parts."""
    document = parse(text)
    try:
        values = {_OTHER_NAMES.get(name, name): value for name, value in document.items()}
        known = {each.name for each in fields(Estimate)} - {"attribution", "performance"}
        values = {name: value for name, value in values.items() if name in known}
        values.setdefault("engine", "virtual")
        values["ranks"] = [_read_rank(each) for each in values.get("ranks") or ()]
        return from_plain(Estimate, {**values, "gpu": _gpu(document["gpu"]), "peak": _peak(document["peak"])})
    except KeyError as error:
        raise TraceError(f"damaged estimate: it has no {error}.") from None
    except (TypeError, AttributeError, ValueError, AssertionError, UsageError) as error:
        raise TraceError(f"damaged estimate: {error}.") from None


def _read_rank(document: dict[str, Any]) -> dict[str, Any]:
    alike = [int(rank) for rank in str(document["stands_for"]).split(",")]
    return {**document, "stands_for": alike, "peak": _peak(document["peak"])}


def parse(text: str | bytes, *, name: str = "this") -> dict[str, Any]:
    """Parse and check that it is a document written by foretell."""
    try:
        document = parse_json(text)
    except ValueError:
        raise TraceError(f"{name} is neither a trace nor JSON, or is truncated.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        what = f"has the format {schema!r}" if isinstance(schema, str) else "is JSON, but not written by foretell"
        raise TraceError(f"{name} {what}; this version of foretell reads {SCHEMA!r}.")
    return dict(document)


def _gpu(document: dict[str, Any]) -> dict[str, Any]:
    """Older files have only the card's name and memory; the rest is looked up."""
    major, _, minor = str(document["compute_capability"]).partition(".")
    known = {} if "num_sms" in document else to_plain(gpus.find(document["name"]))
    return {**known, **document, "compute_capability": [int(major), int(minor)]}


def _peak(document: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(PeakMemory)}
    peak = {name: value for name, value in document.items() if name in names}
    peak.setdefault("request_bytes", peak["device_high_bytes"])
    return peak
