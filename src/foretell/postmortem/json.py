"""An explanation as JSON, schema `foretell.explain-oom/1`: keys are added, never changed in meaning."""

from __future__ import annotations

import json
from typing import Any

from foretell.plain import to_plain
from foretell.postmortem.explain import Explanation
from foretell.postmortem.message import OomMessage
from foretell.postmortem.reenact import Reenactment

SCHEMA = "foretell.explain-oom/1"


def render(explanation: Explanation) -> str:
    balance, found = explanation.balance, explanation.diagnosis
    rerun = explanation.reenactment
    document = {
        "schema": SCHEMA,
        "message": _message(explanation.message),
        "number": explanation.number,
        "num_messages": explanation.num_messages,
        "parts": None if balance is None else to_plain(balance.parts()),
        "missing_bytes": None if balance is None else balance.missing_bytes,
        "rounding_bytes": None if balance is None else balance.rounding_bytes,
        "cards": list(explanation.cards),
        "cause": found.cause if rerun is None or rerun.cause is None else rerun.cause,
        "diagnosis": to_plain(found),
        "reenactment": None if rerun is None else _reenactment(rerun),
    }
    return json.dumps(document, indent=2)


def _message(message: OomMessage) -> dict[str, Any]:
    document: dict[str, Any] = to_plain(message)
    document["frames"] = [{"where": frame.place, "function": frame.function} for frame in message.frames]
    return document


def _reenactment(rerun: Reenactment) -> dict[str, Any]:
    estimate = rerun.estimate
    return {
        "gpu": estimate.gpu.name,
        "torch": estimate.torch_version,
        "verdict": estimate.verdict,
        "peak": {
            "allocated_bytes": estimate.peak.allocated_bytes,
            "reserved_bytes": estimate.peak.reserved_bytes,
            "device_bytes": estimate.device_bytes,
        },
        "compared": to_plain(rerun.compared),
        "tried": to_plain(rerun.tried),
        "cause": rerun.cause,
        "why": rerun.why,
        "setting": to_plain(rerun.setting),
        "not_tried": list(rerun.not_tried),
    }
