"""The estimate as JSON, schema `foretell.estimate/1`: keys are added, never changed in meaning."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from foretell.records import CATEGORIES, Attribution, Estimate
from foretell.report.holders import LISTED, blocks_at_peak, by_category, by_module, timeline

SCHEMA = "foretell.estimate/1"
_OF_A_BLOCK = ("bytes", "category", "name", "module", "operator", "phase", "step", "where")


def render(estimate: Estimate) -> str:
    return json.dumps(document(estimate), indent=2)


def document(estimate: Estimate) -> dict[str, Any]:
    gpu, peak = estimate.gpu, estimate.peak
    return {
        "schema": SCHEMA,
        "engine": estimate.engine,
        "verdict": estimate.verdict,
        "gpu": {
            "name": gpu.name,
            "total_bytes": gpu.total_bytes,
            "device_name": gpu.device_name,
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
        "used_by_others_bytes": estimate.used_by_others_bytes,
        "peak_step": estimate.peak_step,
        "steps": [asdict(step) for step in estimate.steps],
        "oom": asdict(estimate.oom) if estimate.oom else None,
        "phases": list(estimate.phases_seen),
        "ended_early": list(estimate.ended_early),
        "caveats": list(estimate.caveats),
        "redirected_writes": list(estimate.redirected_writes),
        "not_sent": list(estimate.not_sent),
        "advice": None if estimate.advice is None else [asdict(each) for each in estimate.advice],
        "leaks": [asdict(leak) for leak in estimate.leaks],
        "command": list(estimate.command),
        "timeline": _timeline(estimate.attribution) if estimate.attribution else None,
        "seconds": {"total": 0.0, "script": 0.0, **{k: round(v, 3) for k, v in estimate.seconds.items()}},
    }


def _at_peak(attribution: Attribution) -> dict[str, Any]:
    """`by_category` adds up to the allocated peak, with slack and fragmentation to the reserved one."""
    blocks = blocks_at_peak(attribution)
    return {
        "by_category": by_category(blocks),
        "fragmentation_bytes": attribution.fragmentation_bytes,
        "slack_bytes": attribution.slack_bytes,
        "by_module": [{"module": module, "bytes": size} for module, size in by_module(blocks)[:LISTED]],
        "blocks": [{name: getattr(block, name) for name in _OF_A_BLOCK} for block in blocks[:LISTED]],
        "num_blocks": len(blocks),
    }


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
