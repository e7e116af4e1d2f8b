"""What of a run on the CPU engine is there for which reason: its allocations in layers, each played with those before.

The engine marks every allocation with its operator, its phase and, where a kernel takes more than its result, the rule
that says so (capture/inside/fake_cuda). The first layers are what PyTorch does by itself above any device; the last
ones are what only CUDA's kernels and libraries take.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import compress

from foretell.allocator import CachingAllocator, play_again
from foretell.cpu.explain import PassResult
from foretell.trace import ACTIONS, MemoryEvents, Trace

_ALLOC = ACTIONS.index("alloc")
_PHASES = {
    "other": ("moved to the card", "parameters, buffers and batches, as the script moves or makes them"),
    "forward": ("forward", "results, and what autograd keeps of them"),
    "evaluation": ("evaluation", "results without gradients"),
    "backward": ("backward", "gradients; a second one is added to the first in place where PyTorch does so"),
    "optimizer": ("optimizer", "state, made in the first step, and lists as long as the model"),
}
_RULES = {
    "cuBLAS workspace": "taken by every product, or once for each thread before torch 2.15",
    "cuBLASLt workspace": "products with a bias",
    "cuDNN workspace": "convolutions, as cuDNN itself says or by rule (overhead/convolution_plans.py); recurrent nets",
}
_TEMPORARY = "while the kernel runs"


def layers_of(trace: Trace, device: int = 0) -> list[PassResult]:
    events = trace.memory
    reasons = [_reason(trace, stack) for stack in range(len(trace.stacks))]
    attention = Counter(
        _attention(trace, stack)
        for action, stack in zip(events.action, events.stack, strict=True)
        if action == _ALLOC and stack >= 0
    )
    results: list[PassResult] = []
    chosen: set[str] = set()
    for name, what in _order({reasons[stack] for stack in set(events.stack) if stack >= 0}):
        chosen.add(name)
        # Frees are kept: one whose allocation is not there does nothing.
        kept = [
            action != _ALLOC or (stack >= 0 and reasons[stack] in chosen)
            for action, stack in zip(events.action, events.stack, strict=True)
        ]
        outcome = play_again(_only(events, kept), CachingAllocator(settings=trace.allocator), device=device)
        count = sum(
            action == _ALLOC and stack >= 0 and reasons[stack] == name
            for action, stack in zip(events.action, events.stack, strict=True)
        )
        if name == "forward" and len(attention) > 1:
            backends = ", ".join(sorted(backend for backend in attention if backend))
            what = f"{what}; attention by {backends}, as the card would choose"
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


def _reason(trace: Trace, stack: int) -> str:
    marks = {file: function for file, _, function in (trace.frames[frame] for frame in trace.stacks[stack][:4])}
    if "<rule>" in marks:
        return marks["<rule>"]
    return _PHASES.get(marks.get("<phase>", "other"), _PHASES["other"])[0]


def _attention(trace: Trace, stack: int) -> str | None:
    for frame in trace.stacks[stack][:2]:
        file, _, function = trace.frames[frame]
        if file == "<operator>" and function.startswith("aten.scaled_dot_product_attention ("):
            return function[function.index("(") + 1 : -1]
    return None


def _order(names: set[str]) -> list[tuple[str, str]]:
    of_phases = [each for each in _PHASES.values() if each[0] in names]
    libraries = [(name, what) for name, what in _RULES.items() if name in names]
    others = sorted(names - {name for name, _ in of_phases} - set(_RULES))
    return [*of_phases, *((name, _TEMPORARY) for name in others), *libraries]


def _only(events: MemoryEvents, kept: list[bool]) -> MemoryEvents:
    def column(values: array[int]) -> array[int]:
        return array(values.typecode, compress(values, kept))

    return MemoryEvents(
        time_us=column(events.time_us),
        action=column(events.action),
        address=column(events.address),
        size=column(events.size),
        stream=column(events.stream),
        device=column(events.device),
        stack=column(events.stack),
    )
