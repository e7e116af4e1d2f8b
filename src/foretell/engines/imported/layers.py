"""Splits the allocations of a run on the CPU engine into layers by cause, each replayed on top of those before.

The engine marks every allocation with its operator, its phase and, for extra memory of a kernel, the rule that requires
it (engines/python_cuda). The first layers are common to all devices; the last ones exist only with CUDA's kernels and
libraries.
"""

from __future__ import annotations

from array import array
from dataclasses import fields
from itertools import compress

from foretell.allocator import CachingAllocator
from foretell.allocator.play import play_again
from foretell.engines.imported.explain import PassResult
from foretell.trace import ACTIONS, MemoryEvents, Origin, Trace

_ALLOC = ACTIONS.index("alloc")
_PHASES = {
    "other": ("moved to the card", "parameters, buffers and batches that the script moves to or creates on the GPU"),
    "forward": ("forward", "results, and tensors saved by autograd"),
    "evaluation": ("evaluation", "results without gradients"),
    "backward": ("backward", "gradients; accumulated in place where PyTorch does so"),
    "optimizer": ("optimizer", "state created in the first step, and per-parameter temporaries"),
}
_RULES = {
    "cuBLAS workspace": "one per matrix product, or one per thread before torch 2.15",
    "cuBLASLt workspace": "matrix products with a bias",
    "cuDNN workspace": "convolutions (queried from cuDNN, or estimated) and recurrent layers",
}
_TEMPORARY = "while the kernel runs"
_ATTENTION = "aten.scaled_dot_product_attention"


def layers_of(trace: Trace) -> list[PassResult]:
    events = trace.memory
    origins = [trace.origin(number) for number in range(len(trace.origins.operator))]
    # Reason of each event; None for frees.
    reasons = [
        _reason(origins[origin]) if action == _ALLOC and origin >= 0 else None
        for action, origin in zip(events.action, events.origin, strict=True)
    ]
    attention = ", ".join(sorted({_kernel(origin) for origin in origins if origin.operator == _ATTENTION}))
    results: list[PassResult] = []
    chosen: set[str] = set()
    for name, what in _order({reason for reason in reasons if reason}):
        chosen.add(name)
        # Frees are kept: one without an allocation has no effect.
        kept = [action != _ALLOC or reason in chosen for action, reason in zip(events.action, reasons, strict=True)]
        allocator = CachingAllocator(settings=trace.allocator)
        outcome = play_again(_only(events, kept), allocator, device=trace.busiest_device)
        count = reasons.count(name)
        if name == "forward" and attention:
            what = f"{what}; attention by {attention}, as the card would choose"
        results.append(
            PassResult(
                name=name,
                what=what,
                num_events=count,
                peak_allocated_bytes=outcome.peak_allocated_bytes,
                peak_reserved_bytes=outcome.peak_reserved_bytes,
            )
        )
    return results


def _kernel(origin: Origin) -> str:
    """`efficient (not flash: not in half precision)`."""
    reason = f" ({origin.kernel_reason})" if origin.kernel_reason else ""
    return f"{origin.kernel}{reason}"


def _reason(origin: Origin) -> str:
    return origin.rule or _PHASES[origin.phase or "other"][0]


def _order(names: set[str]) -> list[tuple[str, str]]:
    of_phases = [each for each in _PHASES.values() if each[0] in names]
    libraries = [(name, what) for name, what in _RULES.items() if name in names]
    others = sorted(names - {name for name, _ in of_phases} - set(_RULES))
    return [*of_phases, *((name, _TEMPORARY) for name in others), *libraries]


def _only(events: MemoryEvents, kept: list[bool]) -> MemoryEvents:
    def column(values: array[int]) -> array[int]:
        return array(values.typecode, compress(values, kept))

    return MemoryEvents(**{each.name: column(getattr(events, each.name)) for each in fields(events)})
