"""The estimate as JSON, schema `foretell.estimate/1`: keys are added, never changed in meaning."""

from __future__ import annotations

import json
from dataclasses import asdict

from foretell.records import Estimate

SCHEMA = "foretell.estimate/1"


def render(estimate: Estimate) -> str:
    gpu, peak = estimate.gpu, estimate.peak
    document = {
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
        "command": list(estimate.command),
        "seconds": {"total": 0.0, "script": 0.0, **{k: round(v, 3) for k, v in estimate.seconds.items()}},
    }
    return json.dumps(document, indent=2)
