"""A check as JSON, schema `foretell.check/1`: keys are added, never changed in meaning."""

from __future__ import annotations

import json

from foretell.diff import json as diff_json
from foretell.plan.check import Check, headline
from foretell.report import json as report_json

SCHEMA = "foretell.check/1"


def render(check: Check) -> str:
    document = {
        "schema": SCHEMA,
        "verdict": check.verdict,
        "summary": headline(check),
        "rules": [
            {
                "rule": rule.kind,
                "given": rule.given,
                "of": rule.of,
                "allowed_bytes": rule.allowed_bytes,
                "found_bytes": rule.found_bytes,
                "kept": rule.is_kept,
            }
            for rule in check.rules
        ],
        "caveats": list(check.caveats),
        "difference": None if check.difference is None else diff_json.document(check.difference),
        "estimate": report_json.document(check.estimate),
    }
    return json.dumps(document, indent=2)
