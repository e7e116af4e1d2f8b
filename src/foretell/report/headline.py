"""The verdict in words, the same on every page and screen."""

from __future__ import annotations

from foretell.records import Estimate

WHICH_NUMBER = "Ask a scheduler for request; nvidia-smi shows device, torch peak reserved."


def label_of(estimate: Estimate) -> str:
    if estimate.oom is not None:
        return "OUT OF MEMORY"
    if estimate.ended_by is None:
        return "FITS"
    return "FITS SO FAR" if estimate.steps or estimate.has_verdict else "NO STEP YET"
