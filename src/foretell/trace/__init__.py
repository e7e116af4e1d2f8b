"""The trace: all that one run told, as one versioned file from which every result is computed."""

from foretell.trace.file import SCHEMA, load, save
from foretell.trace.folder import from_capture
from foretell.trace.records import (
    ACTIONS,
    AllocatorSettings,
    Counted,
    DeviceMemory,
    DriverEvents,
    Keeper,
    KernelLaunches,
    Labels,
    LibraryCalls,
    MemoryEvents,
    MissingFunction,
    OomMark,
    ScriptException,
    Spans,
    StepMark,
    Trace,
    Unsupported,
)

__all__ = [
    "ACTIONS",
    "SCHEMA",
    "AllocatorSettings",
    "Counted",
    "DeviceMemory",
    "DriverEvents",
    "Keeper",
    "KernelLaunches",
    "Labels",
    "LibraryCalls",
    "MemoryEvents",
    "MissingFunction",
    "OomMark",
    "ScriptException",
    "Spans",
    "StepMark",
    "Trace",
    "Unsupported",
    "from_capture",
    "load",
    "save",
]
