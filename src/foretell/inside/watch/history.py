"""Writes PyTorch's own memory history to disk, in windows `history-<pid>-<n>.marshal`.

Recording starts at the very beginning of CUDA's initialisation and is flushed to disk at step boundaries, so that
neither the buffer nor the time to read it grows without limit. Frees are recorded without a stack: the reader pairs
them with their allocation. PyTorch's `time_us` is the wall clock in microseconds, the same as `time.time_ns() // 1000`
(checked on torch 2.6.0 and 2.15.0), so events and phases can be aligned.

A flush turns recording off and on: turning it off clears the buffer on every version (`clear_history` exists only on
newer ones). Allocations by another thread in between would be missed.
"""

from __future__ import annotations

import marshal
import os
from array import array
from typing import Any

from ...protocol.history import ACTIONS, COLUMNS, ORIGIN
from ...protocol.marks import NOTHING
from ..capture import Capture

MAX_ENTRIES = 4_000_000
"""Recording stops after this many: a long run repeats itself."""
ENTRIES_PER_WINDOW = 20_000
_CODES = {action: code for code, action in enumerate(ACTIONS)}
_UNSIGNED = (1 << 64) - 1


class History:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._torch: Any = None
        self._is_recording = False
        self._is_ours = False
        self._num_windows = 0
        self._num_entries = 0
        self._allocations_at_flush: int | None = None
        self._pid = 0

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised."""
        self._torch = torch
        self._pid = os.getpid()
        self._yield_to_the_script()
        self._record("all")
        self._is_recording = True
        self._capture.after_step.append(self._flush_when_large)
        self._capture.before_end.append(self.flush)

    def flush(self) -> None:
        if not self._is_recording or os.getpid() != self._pid:
            return
        for device, entries in enumerate(snapshot(self._torch)["device_traces"]):
            if entries:
                self._num_entries += len(entries)
                self._write_window(window(device, entries))
        self._record(None)
        self._allocations_at_flush = self._num_allocations()
        if self._num_entries > MAX_ENTRIES:
            self._is_recording = False
            step = self._capture.num_steps
            self._capture.caveat(f"the memory history ends after {self._num_entries} events, at step {step}")
        elif self._is_recording:
            self._record("all")

    def _flush_when_large(self) -> None:
        # At least two entries per allocation; reading the allocator's counters is cheap, taking a snapshot is not.
        since = self._num_allocations() - (self._allocations_at_flush or 0)
        if self._is_recording and 2 * since > ENTRIES_PER_WINDOW:
            self.flush()

    def _num_allocations(self) -> int:
        cuda = self._torch._C
        devices = range(cuda._cuda_getDeviceCount())
        return sum(cuda._cuda_memoryStats(device)["allocation"]["all"]["allocated"] for device in devices)

    def _record(self, enabled: str | None) -> None:
        self._is_ours = True
        try:
            self._torch.cuda.memory._record_memory_history(enabled, context="alloc", stacks="python")
        finally:
            self._is_ours = False

    def _yield_to_the_script(self) -> None:
        """Stop recording if the script records the history itself: there is one recorder per process."""

        def yielding(original: Any) -> Any:
            def record_memory_history(*args: Any, **kwargs: Any) -> Any:
                if not self._is_ours and self._is_recording:
                    self.flush()
                    self._is_recording = False
                    self._capture.caveat(
                        "the script records the memory history itself; foretell's own recording stops there"
                    )
                return original(*args, **kwargs)

            return record_memory_history

        self._capture.patches.wrap(self._torch.cuda.memory, "_record_memory_history", yielding)

    def _write_window(self, content: dict[str, Any]) -> None:
        path = os.path.join(self._capture.options.directory, f"history-{self._pid}-{self._num_windows}.marshal")
        self._num_windows += 1
        try:
            with open(path, "wb") as file:
                # Version 2 is without references: every Python reads it, and equal events give equal files.
                marshal.dump(content, file, 2)
        except OSError as error:
            self._is_recording = False
            self._capture.caveat(f"cannot write the memory history: {error}")


def snapshot(torch: Any) -> Any:
    take = torch._C._cuda_memorySnapshot
    try:
        return take(None)  # torch 2.9 and newer: an optional memory pool
    except TypeError:
        return take()


def window(device: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Entries of one device as columns, with tables of stacks, frames and origins."""
    frames: dict[tuple[str, int, str], int] = {}
    frame_by_identity: dict[int, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    origins: dict[tuple[str | None, ...], int] = {}
    columns = {name: array(letter) for name, letter in COLUMNS.items()}
    append = [columns[name].append for name in COLUMNS]
    for entry in entries:
        stack_id = NOTHING
        if entry.get("frames"):
            # torch hands out one dict per distinct frame, so identity is enough to find it again.
            ids = []
            for frame in entry["frames"]:
                frame_id = frame_by_identity.get(id(frame))
                if frame_id is None:
                    key = (frame["filename"], frame["line"], frame["name"])
                    frame_id = frames.setdefault(key, len(frames)) if _is_python(key[0]) else NOTHING
                    frame_by_identity[id(frame)] = frame_id
                if frame_id != NOTHING:
                    ids.append(frame_id)
            stack_id = stacks.setdefault(tuple(ids), len(stacks))
        origin = entry.get("origin")
        row = (
            entry["time_us"],
            _CODES.get(entry["action"], _CODES["user_defined"]),
            _address(entry) & _UNSIGNED,
            entry["size"],
            entry["stream"] & _UNSIGNED,
            stack_id,
            NOTHING if origin is None else origins.setdefault(origin, len(origins)),
        )
        for add, value in zip(append, row, strict=True):
            add(value)
    assert all(len(origin) == len(ORIGIN) for origin in origins), list(origins)[:3]
    return {
        "device": device,
        "columns": {name: column.tobytes() for name, column in columns.items()},
        "stacks": [list(stack) for stack in stacks],
        "frames": [list(frame) for frame in frames],
        "origins": [list(origin) for origin in origins],
    }


def _address(entry: dict[str, Any]) -> int:
    """Address of an entry. An out-of-memory entry has the free bytes of the card instead."""
    return int(entry.get("addr", entry.get("device_free", 0)))


def _is_python(filename: str) -> bool:
    return filename.endswith(".py") or filename.startswith("<")
