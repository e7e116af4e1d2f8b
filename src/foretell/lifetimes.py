"""Turns a trace into who held the memory: births and deaths paired, each block with its category, module and line.

What a tensor is for is known where it was labelled (parameters, buffers, gradients, optimizer state, workspaces). The
others tell it by their lives: what a forward pass makes and a backward pass still finds is kept for it, what is there
before the forward pass begins is its input, and all that is gone sooner is temporary.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from foretell.records import CATEGORIES, Attribution, Block, Category, Phase, Segment, Span
from foretell.replay import SMALL_SEGMENT_BYTES, Heap, ReplayError, settings_of
from foretell.trace import ACTIONS, Trace
from foretell.trace.records import PHASES

__all__ = ["ReplayError", "attribute"]

_ALLOC, _FREE_REQUESTED = ACTIONS.index("alloc"), ACTIONS.index("free_requested")
# A label that says more goes before one that says less: a gradient may be a view of what is its parameter's, too.
_RANK = {"parameter": 0, "buffer": 1, "optimizer_state": 2, "gradient": 3, "workspace": 4}


def attribute(trace: Trace, *, device: int = 0) -> Attribution:
    """Of one device. A history that does not add up raises `ReplayError`."""
    return _Attributing(trace, device).result()


@dataclass(slots=True)
class _Life:
    address: int
    bytes: int
    requested_bytes: int
    begin: int
    stack: int
    step: int
    phase: Phase
    where: str | None
    end: int | None = None
    label: Category | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What a stack tells."""

    operator: str | None
    module: str | None
    where: str | None
    """In the user's code."""
    where_in_library: str | None
    category: Category | None
    is_in_module: bool
    """A module's forward is on the stack: in a backward pass that is a recomputation."""
    is_compiled: bool
    """By torch.compile, which leaves no modules, and of whose forward passes not all are marked."""


class _Attributing:
    def __init__(self, trace: Trace, device: int) -> None:
        self._trace = trace
        self._device = device
        self._origins: dict[int, _Origin] = {}
        self._events = [number for number, d in enumerate(trace.memory.device) if d == device]
        """Of this device, as numbers of all events."""
        self._lives: list[_Life] = []
        self._reserved: list[tuple[int, int]] = []
        self._peak = (0, -1)
        """Bytes and event."""
        self._settings = settings_of(trace.memory, trace.allocator)
        self._spans = self._own_spans()

    def result(self) -> Attribution:
        self._follow()
        blocks = tuple(self._block(life) for life in self._decided())
        peak_bytes, peak_event = self._peak
        held = [
            number
            for number, block in enumerate(blocks)
            if block.begin <= peak_event and (block.end is None or block.end > peak_event)
        ]
        held.sort(key=lambda number: -blocks[number].bytes)
        segments = self._segments(peak_event)
        reserved_peak = max((level for _, level in self._reserved), default=0)
        partly_used = sum(s.bytes for s in segments if any(part[2] is not None for part in s.parts))
        fragmentation = max(0, partly_used - peak_bytes)
        return Attribution(
            num_events=len(self._events),
            blocks=blocks,
            spans=self._spans,
            reserved=tuple(self._reserved),
            peak_event=max(peak_event, 0),
            at_peak=tuple(held),
            fragmentation_bytes=fragmentation,
            slack_bytes=reserved_peak - peak_bytes - fragmentation,
            segments=segments,
        )

    # --- births and deaths --------------------------------------------------------------------------------------------

    def _own_spans(self) -> tuple[Span, ...]:
        """In the numbers of this device's events."""
        spans = self._trace.spans
        rows = zip(spans.event, spans.phase, spans.step, strict=True)
        return tuple(
            Span(begin=bisect_left(self._events, event), step=step, phase=PHASES[phase]) for event, phase, step in rows
        )

    def _span_of_event(self) -> Iterator[tuple[int, Phase, str | None]]:
        """Step, phase and the line that began it, event by event."""
        step, phase, where = 0, PHASES[-1], None
        places = [self._trace.owners[w] if w >= 0 else None for w in self._trace.spans.where]
        pending = list(zip(self._spans, places, strict=True))[::-1]
        for event in range(len(self._events)):
            while pending and pending[-1][0].begin <= event:
                span, where = pending.pop()
                step, phase = span.step, span.phase
            yield step, phase, where

    def _follow(self) -> None:
        memory, heap = self._trace.memory, Heap(self._settings)
        held: dict[int, int] = {}
        allocated = reserved = 0
        labels = _LabelsInOrder(self._trace, self._device)
        spans = self._span_of_event()
        for event, number in enumerate(self._events):
            labels.apply(number, held, self._lives)
            step, phase, where = next(spans)
            action, address = memory.action[number], memory.address[number]
            if not heap.follow(event, ACTIONS[action], address, memory.size[number]):
                continue
            if action == _ALLOC:
                held[address] = len(self._lives)
                self._lives.append(
                    _Life(
                        address=address,
                        bytes=heap.allocated_bytes - allocated,
                        requested_bytes=memory.size[number],
                        begin=event,
                        stack=memory.stack[number],
                        step=step,
                        phase=phase,
                        where=where,
                    )
                )
                if heap.allocated_bytes > self._peak[0]:
                    self._peak = heap.allocated_bytes, event
            elif action == _FREE_REQUESTED and address in held:
                self._lives[held.pop(address)].end = event
            if heap.reserved_bytes != reserved:
                self._reserved.append((event, heap.reserved_bytes))
            allocated, reserved = heap.allocated_bytes, heap.reserved_bytes
        labels.apply(len(memory.action), held, self._lives)

    # --- what each was for --------------------------------------------------------------------------------------------

    def _decided(self) -> Iterator[tuple[_Life, _Origin, Category]]:
        """By what is known of it, else by when it lived."""
        by_life = _ByLife(self._spans, is_training=bool(self._begins("backward") or self._trace.ooms))
        # Where a backward pass goes on after a recomputation: what is still there then was kept for it.
        by_life.goes_on = [
            life.begin for life in self._lives if life.phase == "backward" and not self._origin(life.stack).is_in_module
        ]
        for life in self._lives:
            origin = self._origin(life.stack)
            yield life, origin, life.label or origin.category or by_life.category(life, origin)

    def _begins(self, phase: Phase) -> list[int]:
        return [span.begin for span in self._spans if span.phase == phase]

    def _block(self, decided: tuple[_Life, _Origin, Category]) -> Block:
        life, origin, category = decided
        phase: Phase | Literal["recomputation"] = life.phase
        if phase == "backward" and origin.is_in_module:
            phase = "recomputation"
        module = origin.module
        if life.name is not None and category != "workspace":
            module = _module_of(life.name)
        return Block(
            address=life.address,
            bytes=life.bytes,
            requested_bytes=life.requested_bytes,
            begin=life.begin,
            end=life.end,
            category=category,
            name=life.name,
            module=module,
            operator=origin.operator,
            phase=phase,
            step=life.step,
            where=origin.where or life.where or origin.where_in_library,
        )

    def _origin(self, stack: int) -> _Origin:
        if stack not in self._origins:
            numbers = self._trace.stacks[stack] if stack >= 0 else ()
            self._origins[stack] = _origin_of([self._trace.frames[number] for number in numbers])
        return self._origins[stack]

    # --- segments -----------------------------------------------------------------------------------------------------

    def _segments(self, until: int) -> tuple[Segment, ...]:
        """As they were after an event, and which blocks lay in them."""
        heap = Heap(self._settings)
        memory = self._trace.memory
        for event, number in enumerate(self._events[: until + 1]):
            heap.follow(event, ACTIONS[memory.action[number]], memory.address[number], memory.size[number])
        block_of = {life.begin: number for number, life in enumerate(self._lives)}
        segments = []
        for pieces in heap.segments():
            address, size = pieces[0].address, sum(piece.size for piece in pieces)
            parts = tuple(
                (piece.address - address, piece.size, block_of[piece.event] if piece.is_allocated else None)
                for piece in pieces
            )
            segments.append(Segment(address=address, bytes=size, is_small=size <= SMALL_SEGMENT_BYTES, parts=parts))
        return tuple(segments)


class _ByLife:
    """What a block was for, told by how long it lived."""

    def __init__(self, spans: Sequence[Span], *, is_training: bool) -> None:
        self._is_training = is_training
        """Of a job without a backward pass nobody keeps anything; unless it ran out of memory before."""
        self._forwards = [span.begin for span in spans if span.phase in ("forward", "evaluation")]
        self._backwards = [span.begin for span in spans if span.phase == "backward"]
        self._after_backward = [after.begin for span, after in pairwise(spans) if span.phase == "backward"]
        self.goes_on: list[int] = []

    def category(self, life: _Life, origin: _Origin) -> Category:
        if life.phase == "forward" or (life.phase == "other" and origin.is_compiled):
            is_kept = self._is_training and _outlives(life, _next(self._backwards, life.begin))
            return "activation" if is_kept else "temporary"
        if life.phase == "backward":
            if origin.is_in_module:
                return "activation" if _outlives(life, _next(self.goes_on, life.begin)) else "temporary"
            end = _next(self._after_backward, life.begin)
            return "gradient" if end is not None and _outlives(life, end) else "temporary"
        if life.phase == "optimizer":
            return "optimizer_state" if life.end is None else "temporary"
        if life.phase == "other":
            forward = _next(self._forwards, life.begin)
            return "input" if forward is not None and _outlives(life, forward) else "temporary"
        return "temporary"


class _LabelsInOrder:
    def __init__(self, trace: Trace, device: int) -> None:
        labels = trace.labels
        rows = zip(labels.event, labels.device, labels.address, labels.category, labels.name, strict=True)
        self._pending = [row for row in rows if row[1] == device][::-1]
        self._owners = trace.owners

    def apply(self, number: int, held: dict[int, int], lives: list[_Life]) -> None:
        """Those that come before an event."""
        addresses: list[int] | None = None
        while self._pending and self._pending[-1][0] <= number:
            _, _, address, category_number, name = self._pending.pop()
            at = held.get(address)
            if at is None:  # in the middle of a block: a view
                addresses = sorted(held) if addresses is None else addresses
                before = bisect_right(addresses, address)
                if not before:
                    continue
                at = held[addresses[before - 1]]
                if address >= lives[at].address + lives[at].bytes:
                    continue
            life, category = lives[at], CATEGORIES[category_number]
            if life.label is None or _RANK[category] < _RANK[life.label]:
                life.label, life.name = category, None
            if life.label == category and life.name is None and name >= 0:
                life.name = self._owners[name]


def _next(places: list[int], event: int) -> int | None:
    at = bisect_right(places, event)
    return places[at] if at < len(places) else None


def _outlives(life: _Life, event: int | None) -> bool:
    return life.end is None or (event is not None and life.end >= event)


def _module_of(name: str) -> str | None:
    """Of the name of a parameter, perhaps with what of its state is meant: `Net.linear.weight (exp_avg)`."""
    module, _, _ = name.partition(" (")[0].rpartition(".")
    return module or None


# --- stacks -----------------------------------------------------------------------------------------------------------

_OURS = re.compile(r"[/\\]foretell[/\\]capture[/\\]")
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+|(torch)?inductor(_\w+)?)[/\\]|^<")
_COMPILED = re.compile(r"[/\\](torch)?inductor(_\w+)?[/\\]\w\w[/\\]")
_FSDP = re.compile(r"[/\\]torch[/\\]distributed[/\\](fsdp|_composable)[/\\]")


def _origin_of(frames: Sequence[tuple[str, int, str]]) -> _Origin:
    """`frames`: file, line and function, innermost first."""
    marks: dict[str, str] = {}
    own = library = operator = graph = None
    is_in_module = False
    category: Category | None = None
    for file, line, function in frames:
        if _OURS.search(file):
            continue
        if file.startswith("<") and file.endswith(">") and file != "<string>":
            marks.setdefault(file, function)
            continue
        if own is None and not _LIBRARY.search(file):
            own = f"{file}:{line}"
        if library is None:
            library = f"{file}:{line}"
            operator = f"{_stem(file)}.{function}"
        is_in_module = is_in_module or function == "_call_impl"
        if not is_in_module:  # beyond it are the callers of the module that allocates
            category = category or _category_of_frame(file, function)
        if graph is None and _COMPILED.search(file):
            graph = f"compiled graph {_stem(file)[:8]}:{line}"
    rule = marks.get("<rule>", "")
    if rule.endswith("workspace"):
        category = "workspace"
    return _Origin(
        operator=graph or marks.get("<operator>", operator),
        module=marks.get("<nn.Module>"),
        where=own,
        where_in_library=library,
        category=category,
        is_in_module=is_in_module,
        is_compiled=graph is not None,
    )


def _stem(file: str) -> str:
    return re.split(r"[/\\]", file)[-1].removesuffix(".py")


def _category_of_frame(file: str, function: str) -> Category | None:
    """What code of torch's own says by itself, where nothing was labelled."""
    if file.endswith(("nn/modules/module.py", "nn\\modules\\module.py")) and function in ("_apply", "convert"):
        return "parameter"
    if file.endswith(("nn/parallel/distributed.py", "nn\\parallel\\distributed.py")):
        return "gradient"  # DDP's buckets: all it allocates by itself
    if _FSDP.search(file):
        if "reduce" in function:
            return "gradient"
        if "gather" in function or "unshard" in function:
            return "parameter"
    return None
