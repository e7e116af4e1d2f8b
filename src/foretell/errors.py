"""Every error foretell raises on purpose. Only foretell.cli prints them and picks the exit code."""

from __future__ import annotations


class ForetellError(Exception):
    """What was given, what is allowed, what to do; shown without a traceback."""

    exit_code = 2


class UsageError(ForetellError):
    """The user asked for something that does not exist or does not go together."""


class UnsupportedError(ForetellError):
    """The environment or the job is one foretell cannot estimate (yet)."""


class ScriptError(ForetellError):
    """The user's own script failed by itself; its traceback has been shown already."""

    exit_code = 1


class TraceError(ForetellError):
    """A trace file cannot be written or read."""
