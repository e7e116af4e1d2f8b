"""What is done after a long script: reading its capture folder, the estimate, the reports.

    python -m benchmarks.long_run [--steps 20000]

The folder is made by hand: a small training step, as often as asked for, with its marks and labels. The script itself
takes a minute and more for so many steps; what foretell does afterwards should take a few seconds.
"""

from __future__ import annotations

import argparse
import json
import marshal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from foretell import gpus
from foretell.analysis.verdict import estimate_of
from foretell.inside.watch.history import window
from foretell.jobs import CaptureResult, Job
from foretell.protocol.marks import LABELLED, NOTHING
from foretell.report import html, snapshot
from foretell.report import json as json_report
from foretell.rules import library_bytes
from foretell.trace import from_capture

SEGMENT = 0x7F00_0000_0000
SEGMENT_BYTES = 2 << 20
PARAMETERS = (16384, 512, 16384, 512)
"""Bytes, as the allocator rounds them; each has a gradient, and two states of Adam from the first step on."""
ACTIVATIONS, TEMPORARIES = 6, 10
BLOCK = 8192
STEPS_PER_WINDOW = 300
PID = 100
T = TypeVar("T")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    num_steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        print(f"{num_steps:,} steps, {make_folder(Path(name), num_steps):,} memory events; seconds of CPU:")
        trace, reading = timed(lambda: from_capture(result_of(Path(name))))
    estimate, estimating = timed(lambda: estimate_of(trace))
    attribution = estimate.attribution
    assert attribution is not None, estimate.caveats
    for what, seconds in (
        ("reading the capture folder", reading),
        ("the estimate", estimating),
        ("  both", reading + estimating),
        ("--json", timed(lambda: json_report.render(estimate))[1]),
        ("--report", timed(lambda: html.render(estimate, attribution))[1]),
        ("--snapshot", timed(lambda: snapshot.render(trace, attribution))[1]),
    ):
        print(f"  {what:28} {seconds:6.2f}")
    return 0


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    made = work()
    return made, time.process_time() - started


def make_folder(folder: Path, num_steps: int) -> int:
    """Returns the number of memory events."""
    maker = _Maker()
    num_windows = 0
    with (folder / f"journal-{PID}.jsonl").open("w") as journal:

        def write(kind: str, **values: Any) -> None:
            journal.write(json.dumps({"kind": kind, "time_us": maker.time_us, **values}) + "\n")

        write("process", pid=PID, argv=["train.py"], executable="python", python="3.11.7")
        write("torch", version="2.15.0+cu132", cuda="13.2", cudnn=92600)
        write("cuda", device_count=1, arch_list=["sm_86"])
        maker.begin()
        for step in range(num_steps):
            for phase in maker.step(step):
                write("phase", phase=phase, step=step)
            write("step", index=step, devices=[maker.counters()])
            if step % STEPS_PER_WINDOW == STEPS_PER_WINDOW - 1 or step == num_steps - 1:
                for kind, content in (("history", window(0, maker.entries)), ("owners", maker.owners())):
                    (folder / f"{kind}-{PID}-{num_windows}.marshal").write_bytes(marshal.dumps(content, 2))
                num_windows += 1
                maker.entries.clear()
        write("end", steps=num_steps, phases=["forward", "backward", "optimizer"], devices=[maker.counters()])
    return maker.time_us


def result_of(folder: Path) -> CaptureResult:
    gpu = gpus.find("rtx-3060")
    return CaptureResult(
        job=Job(command=("train.py",), gpu=gpu),
        directory=folder,
        command=("python", "train.py"),
        libraries=library_bytes(gpu),
        exit_status=0,
        is_timed_out=False,
        seconds=1.0,
    )


class _Maker:
    """Events, marks and labels of a training, with the time as a count of events."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.time_us = 0
        self._num_allocations = 0
        self._allocated = self._peak = 0
        self._names: dict[str, int] = {}
        self._marks: list[tuple[int, ...]] = []
        self._labels: list[tuple[int, ...]] = []
        self._at = SEGMENT
        self._parameters: list[int] = []

    def begin(self) -> None:
        self._event("segment_alloc", SEGMENT, SEGMENT_BYTES)
        for number, size in enumerate(PARAMETERS):
            self._parameters.append(self._alloc(size, 3))
            self._label("parameter", self._parameters[-1], f"Net.{number}.weight")

    def step(self, number: int) -> Iterator[str]:
        begin = self._at
        yield self._phase("forward", number)
        self._alloc(BLOCK, 7)
        kept = [self._alloc(BLOCK, 8 + line) for line in range(ACTIVATIONS)]
        yield self._phase("backward", number)
        gradients = []
        for at, size in enumerate(PARAMETERS):
            self._node("AddmmBackward0", f"Net.{at}", number)
            gradients.append(self._alloc(size, 0))
            for _ in range(TEMPORARIES // len(PARAMETERS)):
                self._free(self._alloc(BLOCK, 0), BLOCK)
        yield self._phase("optimizer", number)
        for at, address in enumerate(gradients):
            self._label("parameter", self._parameters[at], f"Net.{at}.weight")
            self._label("gradient", address, f"Net.{at}.weight")
        yield self._phase("other", number)
        for address in kept:
            self._free(address, BLOCK)
        for address, size in zip(gradients, PARAMETERS, strict=True):
            self._free(address, size)
        self._free(begin, BLOCK)
        self._at = begin

    def counters(self) -> dict[str, int]:
        return {
            "device": 0,
            "allocated_bytes": self._allocated,
            "reserved_bytes": SEGMENT_BYTES,
            "peak_allocated_bytes": self._peak,
            "peak_reserved_bytes": SEGMENT_BYTES,
        }

    def owners(self) -> dict[str, Any]:
        content = {"names": list(self._names), "marks": self._marks, "labels": self._labels}
        self._names, self._marks, self._labels = {}, [], []
        return content

    def _alloc(self, size: int, line: int) -> int:
        address = self._at
        self._at += size
        self._num_allocations += 1
        self._event("alloc", address, size, line)
        self._allocated += size
        self._peak = max(self._peak, self._allocated)
        return address

    def _free(self, address: int, size: int) -> None:
        for action in ("free_requested", "free_completed"):
            self._event(action, address, size)
        self._allocated -= size
        if address + size == self._at:
            self._at = address

    def _event(self, action: str, address: int, size: int, line: int = 0) -> None:
        frames = [{"filename": "train.py", "line": line, "name": "main"}] if line else []
        self.entries.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time_us, "frames": frames}
        )
        self.time_us += 1

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _phase(self, phase: str, step: int) -> str:
        self._marks.append((0, self._num_allocations, self._name(phase), step, NOTHING, NOTHING))
        return phase

    def _node(self, node: str, module: str, step: int) -> None:
        self._marks.append((0, self._num_allocations, NOTHING, step, self._name(node), self._name(module)))

    def _label(self, category: str, address: int, name: str) -> None:
        self._labels.append((0, self._num_allocations, address, LABELLED.index(category), self._name(name)))


if __name__ == "__main__":
    sys.exit(main())
