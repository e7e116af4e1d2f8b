"""Turns PyTorch's own memory history into windows `history-<pid>-<n>.marshal`.

Recording starts in the first moment of CUDA's initialisation and is emptied to disk at step boundaries, so that neither
the buffer nor its reading grows without limit. Frees are recorded without a stack: the reader pairs them with their
allocation. PyTorch's `time_us` is the wall clock in microseconds, the same as `time.time_ns() // 1000` (checked on
torch 2.6.0 and 2.15.0), so events and phases can be put side by side.

Emptying is off and on again: turning recording off clears the buffer on every version (`clear_history` exists only on
newer ones). What is allocated in between by another thread would be missed.
"""

from __future__ import annotations

import marshal
import os
from typing import Any

from .run import Run

MAX_ENTRIES = 4_000_000
"""After that many recording stops: a long run repeats itself."""
ENTRIES_PER_WINDOW = 20_000
NO_STACK = -1


class History:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._torch: Any = None
        self._is_recording = False
        self._is_ours = False
        self._num_windows = 0
        self._num_entries = 0
        self._allocations_at_flush: int | None = None
        self._pid = 0

    def install(self, torch: Any) -> None:
        """Called when CUDA is being initialised."""
        self._torch = torch
        self._pid = os.getpid()
        self._yield_to_the_script()
        self._record("all")
        self._is_recording = True
        self._run.after_step.append(self._flush_when_large)
        self._run.before_end.append(self.flush)

    def flush(self) -> None:
        if not self._is_recording or os.getpid() != self._pid:
            return
        for device, entries in enumerate(self._snapshot()["device_traces"]):
            if entries:
                self._num_entries += len(entries)
                self._write_window(window(device, entries))
        self._record(None)
        self._allocations_at_flush = self._num_allocations()
        if self._num_entries > MAX_ENTRIES:
            self._is_recording = False
            self._run.caveat(f"the memory history ends after {self._num_entries} events, at step {self._run.num_steps}")
        elif self._is_recording:
            self._record("all")

    def _flush_when_large(self) -> None:
        # Two entries and more per allocation; asking the allocator's counters is cheap, taking a snapshot is not.
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

    def _snapshot(self) -> Any:
        take = self._torch._C._cuda_memorySnapshot
        try:
            return take(None)  # torch 2.9 and newer: an optional memory pool
        except TypeError:
            return take()

    def _yield_to_the_script(self) -> None:
        """A script that records the history itself gets it for itself alone: there is one recorder in a process."""
        memory = self._torch.cuda.memory
        original = memory._record_memory_history

        def record_memory_history(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours and self._is_recording:
                self.flush()
                self._is_recording = False
                self._run.caveat("the script records the memory history itself; foretell's record of it ends there")
            return original(*args, **kwargs)

        memory._record_memory_history = record_memory_history

    def _write_window(self, content: dict[str, Any]) -> None:
        path = os.path.join(self._run.options.directory, f"history-{self._pid}-{self._num_windows}.marshal")
        self._num_windows += 1
        try:
            with open(path, "wb") as file:
                # Version 2 is without references: every Python reads it, and equal events give equal files.
                marshal.dump(content, file, 2)
        except OSError as error:
            self._is_recording = False
            self._run.caveat(f"the memory history could not be written: {error}")


def window(device: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Entries of one device, with stacks and frames in tables of their own."""
    frames: dict[tuple[str, int, str], int] = {}
    frame_by_identity: dict[int, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    rows = []
    for entry in entries:
        stack_id = NO_STACK
        if entry.get("frames"):
            # torch hands out one dict per distinct frame, so identity is enough to find it again.
            ids = []
            for frame in entry["frames"]:
                frame_id = frame_by_identity.get(id(frame))
                if frame_id is None:
                    key = (frame["filename"], frame["line"], frame["name"])
                    frame_id = frames.setdefault(key, len(frames)) if _is_python(key[0]) else NO_STACK
                    frame_by_identity[id(frame)] = frame_id
                if frame_id != NO_STACK:
                    ids.append(frame_id)
            stack_id = stacks.setdefault(tuple(ids), len(stacks))
        rows.append([entry["action"], _address(entry), entry["size"], entry["stream"], entry["time_us"], stack_id])
    return {
        "device": device,
        "entries": rows,
        "stacks": [list(stack) for stack in stacks],
        "frames": [list(frame) for frame in frames],
    }


def _address(entry: dict[str, Any]) -> int:
    """Running out of memory has none; PyTorch says in its place what was free on the card."""
    return int(entry.get("addr", entry.get("device_free", 0)))


def _is_python(filename: str) -> bool:
    return filename.endswith(".py") or filename.startswith("<")
