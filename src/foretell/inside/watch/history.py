"""Writes PyTorch's own memory history to disk, in windows `history-<pid>-<n>.marshal`.

Recording starts at the very beginning of CUDA's initialisation. It is flushed to disk after each of the first steps,
and later once the buffer is large: after a step, before a backward pass or before a pass of an evaluation, so that
neither the buffer nor the time to read it grows without limit. Passes of an evaluation that repeat those before them
are left out (repetitions.py). Frees are recorded without a stack: the reader pairs them with their allocation.
PyTorch's `time_us` is the wall clock in microseconds, as is `time.time_ns() // 1000` (checked on torch 2.6.0 and
2.15.0), so events and phases can be aligned.

A flush turns recording off and on: turning it off clears the buffer on every version (`clear_history` exists only on
newer ones). Allocations by another thread in between would be missed.
"""

from __future__ import annotations

import marshal
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from ...protocol.history import ACTIONS, COLUMNS, ORIGIN
from ...protocol.marks import NOTHING
from ..capture import EARLY_STEPS, Capture
from .repetitions import Counters, Repetitions

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
        self._allocations_at_flush = 0
        self._repetitions = Repetitions()
        self._pid = 0
        self._context: str | None = "alloc"

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised."""
        self._torch = torch
        self._pid = os.getpid()
        if not _are_file_names_utf8():  # a snapshot of a stack with such a name fails, in C++
            self._context = None
            self._capture.caveat("a file name of the script is not UTF-8, so the lines that allocate are unknown")
        self._yield_to_the_script()
        self._record("all")
        self._is_recording = True
        self._capture.after_step.append(self._step_ends)
        self._capture.before_evaluation.append(self._evaluation_begins)
        self._capture.on_phase.append(self._phase_begins)
        self._capture.before_end.append(self.flush)

    def flush(self) -> None:
        if not self._is_recording or os.getpid() != self._pid:
            return
        traces = {device: entries for device, entries in enumerate(snapshot(self._torch)["device_traces"]) if entries}
        repeated: list[tuple[int, int]] = []
        if len(traces) == 1:
            ((device, entries),) = traces.items()
            traces[device], repeated = self._repetitions.remove(entries, self._allocations_at_flush, self._counters())
        for device, entries in traces.items():
            self._num_entries += len(entries)
            self._write_window(window(device, entries, repeated))
        self._record(None)
        self._allocations_at_flush = self._counters().num_allocations
        if self._num_entries > MAX_ENTRIES:
            self._is_recording = False
            step = self._capture.num_steps
            self._capture.caveat(f"the memory history ends after {self._num_entries} events, at step {step}")
        elif self._is_recording:
            self._record("all")

    def _step_ends(self) -> None:
        if self._capture.num_steps <= EARLY_STEPS:
            self.flush()
        else:
            self._flush_when_large()

    def _evaluation_begins(self) -> None:
        if self._is_recording:
            now = self._counters()
            self._repetitions.begins(now, is_pass=True)
            self._flush_when_large(now)

    def _phase_begins(self, phase: str) -> None:
        if self._is_recording and phase not in ("evaluation", "other"):
            if self._repetitions.is_in_pass:
                self._repetitions.begins(self._counters(), is_pass=False)
            if phase == "backward":
                self._capture.guarded("the memory history", self._flush_when_large)

    def _flush_when_large(self, now: Counters | None = None) -> None:
        # At least two entries per allocation; reading the allocator's counters is cheap, taking a snapshot is not.
        now = now or self._counters()
        if self._is_recording and 2 * (now.num_allocations - self._allocations_at_flush) > ENTRIES_PER_WINDOW:
            self.flush()

    def _counters(self) -> Counters:
        cuda = self._torch._C
        stats = [cuda._cuda_memoryStats(device) for device in range(cuda._cuda_getDeviceCount())]
        return Counters(
            num_allocations=sum(each["allocation"]["all"]["allocated"] for each in stats),
            allocated_bytes=sum(each["allocated_bytes"]["all"]["current"] for each in stats),
            reserved_bytes=sum(each["reserved_bytes"]["all"]["current"] for each in stats),
        )

    def _record(self, enabled: str | None) -> None:
        self._is_ours = True
        try:
            self._torch.cuda.memory._record_memory_history(enabled, context=self._context, stacks="python")
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
        for call in self._capture.before_history:
            self._capture.guarded("compiled code", partial(call, content))
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
    with _without_inductor(torch):
        try:
            return take(None)  # torch 2.9 and newer: an optional memory pool
        except TypeError:
            return take()


@contextmanager
def _without_inductor(torch: Any) -> Iterator[None]:
    """torch asks `hasattr(torch, "_inductor")`, for the lines of compiled code (csrc/profiler/python/
    combined_traceback.cpp): that imports the whole compiler into a script that does not use it."""
    if "torch._inductor" in sys.modules:
        yield
        return
    torch._inductor = nothing = ModuleType("torch._inductor")
    try:
        yield
    finally:
        if torch._inductor is nothing:  # another thread may have imported the real one meanwhile
            del torch._inductor


def window(device: int, entries: list[dict[str, Any]], repeated: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Entries of one device as columns, with tables of stacks, frames and origins, and what was left out of them."""
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
        "repeated": [list(each) for each in repeated],
    }


def _address(entry: dict[str, Any]) -> int:
    """Address of an entry. An out-of-memory entry has the free bytes of the card instead."""
    return int(entry.get("addr", entry.get("device_free", 0)))


def _are_file_names_utf8() -> bool:
    try:
        "".join((sys.argv[:1] or [""]) + [str(folder) for folder in sys.path]).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_python(filename: str) -> bool:
    return filename.endswith(".py") or filename.startswith("<")
