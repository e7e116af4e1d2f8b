"""Run your PyTorch training script on a GPU you don't have, and see how much memory it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "CaptureOptions",
    "Check",
    "DoesNotFitError",
    "Estimate",
    "Explanation",
    "Fit",
    "ForetellError",
    "GuessedJob",
    "Interrupted",
    "Job",
    "NothingOnGpuError",
    "Run",
    "Scale",
    "ScriptError",
    "Share",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "check",
    "emit",
    "estimate",
    "explain_oom",
    "fit",
    "guess",
    "max_batch",
    "maximum",
    "run",
    "scale",
    "share",
    "sweep",
]
if TYPE_CHECKING:
    from foretell.api import Interrupted, Run, estimate, run
    from foretell.errors import (
        DoesNotFitError,
        ForetellError,
        NothingOnGpuError,
        ScriptError,
        UnsupportedError,
        UsageError,
    )
    from foretell.guessing import GuessedJob, guess
    from foretell.jobs import CaptureOptions, Job
    from foretell.plan.check import Check, check
    from foretell.plan.emit import emit
    from foretell.plan.fit import Fit, fit
    from foretell.plan.functions import max_batch, maximum, scale, sweep
    from foretell.plan.scale import Scale
    from foretell.plan.share import Share, share
    from foretell.postmortem import Explanation, explain_oom
    from foretell.records import Estimate


def __getattr__(name: str) -> Any:
    """Import on first use, so that `foretell --help` starts at once."""
    if name in ("Interrupted", "Run", "estimate", "run"):
        from foretell import api

        return getattr(api, name)
    if name in ("Explanation", "explain_oom"):
        from foretell import postmortem

        return getattr(postmortem, name)
    if name in ("max_batch", "maximum", "scale", "sweep"):
        from foretell.plan import functions

        return getattr(functions, name)
    if name in ("Fit", "fit"):
        from foretell.plan import fit as module

        return getattr(module, name)
    if name == "Scale":
        from foretell.plan.scale import Scale

        return Scale
    if name in ("Share", "share"):
        from foretell.plan import share as shares

        return getattr(shares, name)
    if name in ("GuessedJob", "guess"):
        from foretell import guessing

        return getattr(guessing, name)
    if name in ("CaptureOptions", "Job"):
        from foretell import jobs

        return getattr(jobs, name)
    if name in ("Check", "check"):
        from foretell.plan import check as checks

        return getattr(checks, name)
    if name == "emit":
        from foretell.plan.emit import emit

        return emit
    if name == "Estimate":
        from foretell.records import Estimate

        return Estimate
    if name in __all__:
        from foretell import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'foretell' has no attribute {name!r}")
