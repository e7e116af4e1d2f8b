"""An estimate, and its settings, as in docs/emit.md."""

from __future__ import annotations

from dataclasses import replace

from foretell import gpus
from foretell.plan.emit import emit
from foretell.records import Estimate, PeakMemory
from foretell.units import MIB
from report_data import estimate_for, transformer

COMMAND = ("train.py", "--model", "llama-1b", "--batch-size", "20", "--bf16")
BATCH = {"batch_size": 20, "effective_batch": 64}


def example(request_bytes: int, *, gpu: str = "a100-80gb") -> Estimate:
    """Of a job that needs 5/6 of what it asks for."""
    device = request_bytes * 5 // 6
    context = min(426 * MIB, device // 2)
    peak = PeakMemory(
        allocated_bytes=(device - context) * 9 // 10, reserved_bytes=device - context, library_bytes=0,
        context_bytes=context, device_low_bytes=device * 19 // 20, device_high_bytes=device * 11 // 10,
        request_bytes=request_bytes,
    )  # fmt: skip
    return replace(_PLAIN, gpu=gpus.find(gpu), peak=peak)


def settings_of(tool: str, estimate: Estimate) -> str:
    return emit(tool, estimate, **BATCH)


_PLAIN = replace(estimate_for(transformer(num_layers=1)), command=COMMAND, caveats=(), attribution=None)
EXAMPLE = example(21_474 * MIB)
