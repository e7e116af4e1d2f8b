"""Builds by hand what a captured process leaves behind, for the tests of what is made from it."""

from __future__ import annotations

import json
import marshal
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from foretell import gpus
from foretell.inside.watch.history import window as history_window
from foretell.jobs import CaptureResult, Job
from foretell.protocol.native_log import Kind
from foretell.records import LibraryBytes
from foretell.trace import Trace, from_capture
from foretell.units import MIB

SEGMENT = 0x7000_0000_0000


class CaptureFolder:
    def __init__(self, directory: Path, pid: int = 100) -> None:
        self.directory = directory
        self.pid = pid
        self._num_windows = 0
        self._names: list[str] = []

    def journal(self, kind: str, time_us: int = 0, **values: Any) -> CaptureFolder:
        with (self.directory / f"journal-{self.pid}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, "time_us": time_us, **values}) + "\n")
        return self

    def torch(self) -> CaptureFolder:
        self.journal("process", pid=self.pid, argv=["train.py"], executable="python", python="3.11.7")
        self.journal("torch", version="2.15.0+cu132", cuda="13.2", cudnn=92600)
        return self.journal("cuda", device_count=1)

    def step(self, index: int, time_us: int, allocated: int, reserved: int, peak: tuple[int, int]) -> CaptureFolder:
        return self.journal("step", time_us, index=index, devices=[device(allocated, reserved, peak)])

    def end(self, allocated: int, reserved: int, peak: tuple[int, int], **values: Any) -> CaptureFolder:
        devices = [device(allocated, reserved, peak)]
        return self.journal(
            "end", 10**6, steps=0, phases=["forward"], devices=devices, seconds={"script": 1.5}, **values
        )

    def history(self, *entries: tuple[str, int, int, int], line: int = 7) -> CaptureFolder:
        """(action, address, size, time_us), all from one line of the script."""
        frame = {"filename": "train.py", "line": line, "name": "main"}
        told = [
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": [frame]}
            for action, address, size, time_us in entries
        ]
        window = history_window(0, told)
        path = self.directory / f"history-{self.pid}-{self._num_windows}.marshal"
        path.write_bytes(marshal.dumps(window, 2))
        self._num_windows += 1
        return self

    def owners(
        self, names: list[str], *, marks: list[tuple[int, ...]] = (), labels: list[tuple[int, ...]] = ()
    ) -> CaptureFolder:
        """Device, count, phase, step and two names a mark; device, count, address, category, name a label."""
        window = {"names": names, "marks": list(marks), "labels": list(labels)}
        (self.directory / f"owners-{self.pid}-0.marshal").write_bytes(marshal.dumps(window, 2))
        return self

    def call(self, kind: Kind, name: str, *, time_us: int = 0, **values: int) -> CaptureFolder:
        return self.native(kind.number, name, *kind.words(**values), time_us=time_us)

    def native(self, kind: int, name: str, *arguments: int, time_us: int = 0) -> CaptureFolder:
        if name not in self._names:
            self._names.append(name)
            (self.directory / f"native-{self.pid}.names").write_text("".join(f"{n}\n" for n in self._names))
        padded = [*arguments, *[0] * (6 - len(arguments))]
        with (self.directory / f"native-{self.pid}.bin").open("ab") as file:
            file.write(struct.pack("<QIIqqqqqq", time_us, kind, self._names.index(name), *padded))
        return self

    def result(self, **changes: Any) -> CaptureResult:
        """`changes` are those of the job and of the result."""
        job: dict[str, Any] = {"command": ("train.py",), "gpu": replace(gpus.find("rtx-3060"), context_bytes=160 * MIB)}
        values: dict[str, Any] = {
            "directory": self.directory,
            "command": ("python", "train.py"),
            "libraries": LibraryBytes(cublas=18 * MIB, cudnn=263 * MIB, nccl=64 * MIB),
            "exit_status": 0,
            "is_timed_out": False,
            "seconds": 2.0,
        }
        of_job = {each.name for each in fields(Job)} - {"command"}
        job |= {name: value for name, value in changes.items() if name in of_job}
        values |= {name: value for name, value in changes.items() if name not in of_job}
        made = Job(**job)
        return CaptureResult(job=made, empty_process_bytes=made.empty_process_bytes, **values)

    def trace(self, **changes: Any) -> Trace:
        return from_capture(self.result(**changes))


def device(allocated: int, reserved: int, peak: tuple[int, int]) -> dict[str, int]:
    return {
        "device": 0,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "peak_allocated_bytes": peak[0],
        "peak_reserved_bytes": peak[1],
    }


def training_run(directory: Path) -> CaptureFolder:
    """Two steps in one segment of 2 MiB: 1000 bytes stay (1024 allocated), 4096 come and go in each step."""
    return (
        CaptureFolder(directory)
        .torch()
        .history(
            ("segment_alloc", SEGMENT, 2 * MIB, 1),
            ("alloc", SEGMENT, 1000, 2),
            ("alloc", SEGMENT + 1024, 4096, 3),
            ("free_requested", SEGMENT + 1024, 4096, 4),
            ("free_completed", SEGMENT + 1024, 4096, 5),
        )
        .step(0, 6, 1024, 2 * MIB, (5120, 2 * MIB))
        .history(
            ("alloc", SEGMENT + 1024, 2000, 7),
            ("free_requested", SEGMENT + 1024, 2000, 8),
            ("free_completed", SEGMENT + 1024, 2000, 9),
        )
        .step(1, 10, 1024, 2 * MIB, (5120, 2 * MIB))
        .end(1024, 2 * MIB, (5120, 2 * MIB))
    )
