"""Every error foretell raises on purpose. Only foretell.cli prints them and picks the exit code."""

from __future__ import annotations

from typing import Any


class ForetellError(Exception):
    """The message says what was given, what is allowed and what to do; it is shown without a traceback."""

    exit_code = 2


class UsageError(ForetellError):
    """The user asked for something that does not exist or cannot be combined."""


class UnsupportedError(ForetellError):
    """foretell cannot estimate this job, or not in this environment."""


class NothingOnGpuError(UnsupportedError):
    """The job put nothing on the GPU."""


class DoesNotFitError(ForetellError):
    """The job would run out of memory, and what was asked for needs one that fits."""

    exit_code = 3


class ScriptError(ForetellError):
    """The script itself failed; its traceback has already been shown."""

    exit_code = 1

    def __init__(self, message: str, *, estimate: Any = None) -> None:
        super().__init__(message)
        self.estimate = estimate
        """What was known by then, an incomplete `Estimate`; None if it failed before its first training step."""


class TraceError(ForetellError):
    """A file cannot be written or read."""
