"""What held the memory: each block of a device with its category, module and line.

Parameters, buffers, gradients, optimizer state and workspaces are labelled during the run. The category of every other
block follows from its lifetime: allocated in a forward pass and still live in the backward pass, it is an activation;
allocated before the forward pass, an input; anything else is temporary.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from foretell.analysis.history import NONE, History, follow, segments_at_peak
from foretell.analysis.phases import PhaseSpan, phase_spans
from foretell.protocol.lines import Lines
from foretell.records import CATEGORIES, Attribution, BlockKind, Blocks, Category, Phase, Span
from foretell.trace import Trace
from foretell.trace.records import PHASES, Origin

_TEMPORARY = CATEGORIES.index("temporary")
_FOR_EVER = 1 << 62
"""The end of a block that is never freed."""
_NEVER = _FOR_EVER + 1
"""Later than the end of any block."""


def attribute(trace: Trace, *, device: int, history: History | None = None) -> Attribution:
    """The attribution for one device, whose history may be given. An inconsistent one raises `ReplayError`."""
    history = follow(trace, device) if history is None else history
    spans = phase_spans(trace, history)
    blocks = _Deciding(trace, history, spans).blocks()
    peak_bytes, peak_event = history.peak_bytes, history.peak_event
    segments = segments_at_peak(trace, history)
    partly_used = sum(s.bytes for s in segments if any(part[2] is not None for part in s.parts))
    fragmentation = max(0, partly_used - peak_bytes)
    return Attribution(
        device=device,
        num_events=len(history.rows),
        blocks=blocks,
        spans=tuple(Span(begin=span.begin, step=span.step, phase=span.phase) for span in spans),
        reserved=tuple(_changes(history)),
        peak_event=max(peak_event, 0),
        at_peak=tuple(_held_at(blocks, peak_event)),
        fragmentation_bytes=fragmentation,
        slack_bytes=max(history.reserved, default=0) - peak_bytes - fragmentation,
        segments=segments,
    )


def _changes(history: History) -> Iterator[tuple[int, int]]:
    """Events that change the reserved bytes, and the new value."""
    before = 0
    for event in history.resizes:
        if history.reserved[event] != before:
            before = history.reserved[event]
            yield event, before


def _held_at(blocks: Blocks, event: int) -> list[int]:
    """Largest first."""
    end = blocks.end
    held = [n for n in range(bisect_right(blocks.begin, event)) if end[n] == NONE or end[n] > event]
    return sorted(held, key=lambda number: -blocks.bytes[number])


# --- what each was for ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Facts about an allocation from its stack and origin."""

    operator: str | None
    module: str | None
    where: str | None
    """In the user's code, or in a library that is neither torch nor a training loop."""
    where_otherwise: str | None
    category: int
    """Index into CATEGORIES; NONE: unknown from the place alone."""
    is_in_module: bool
    """A module's forward is on the stack: in a backward pass, that is a recomputation."""
    is_compiled: bool
    """By torch.compile; the forward passes of a compiled function are not all marked."""


@dataclass(frozen=True, slots=True)
class _Stay:
    """A block that outlives an event has this category; one freed earlier is temporary."""

    until: int
    category: int


class _Deciding:
    """Assigns each block a category: from its label or place, otherwise from its lifetime."""

    def __init__(self, trace: Trace, history: History, spans: Sequence[PhaseSpan]) -> None:
        self._trace = trace
        self._lives = history.lives
        self._spans = spans
        self._is_training = any(span.phase == "backward" for span in spans) or bool(trace.ooms)
        """Without a backward pass nothing is kept for it; unless the job ran out of memory before."""
        self._places: list[_Place] = []
        self._place_of = self._find_places(history.rows)
        # What a job held when it ran out of memory is freed as the error leaves it, when nothing is allocated any more.
        at_the_end = self._lives.begin[-1] + 1 if trace.ooms and len(self._lives.begin) else _FOR_EVER
        self._next_backward = _next_begins(spans, ("backward",), at_the_end)
        self._next_forward = _next_begins(spans, ("forward", "evaluation"), _NEVER)
        self._numbers: dict[tuple[int, int, int, int, str | None], int] = {}
        self._kinds: dict[BlockKind, int] = {}
        self._resumptions: list[int] | None = None

    def blocks(self) -> Blocks:
        lives = self._lives
        steps, kinds = array("q"), array("q")
        number = 0
        for at, (span, until) in enumerate(self._stretches()):
            last = bisect_left(lives.begin, until, number)
            if last > number:
                steps.extend(array("q", [span.step]) * (last - number))
                kinds.extend(self._kinds_of(at - 1, span.phase, range(number, last)))
                number = last
        return Blocks(
            address=lives.address,
            bytes=lives.bytes,
            requested_bytes=lives.requested_bytes,
            begin=lives.begin,
            end=lives.end,
            step=steps,
            kind=kinds,
            kinds=tuple(self._kinds),
        )

    def _find_places(self, rows: Sequence[int]) -> array[int]:
        memory, lines = self._trace.memory, lines_of(self._trace)
        numbers: dict[tuple[int, int], int] = {}
        found = array("q")
        for event in self._lives.begin:
            row = rows[event]
            key = memory.stack[row], memory.origin[row]
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(numbers)
                self._places.append(place_of(self._trace, lines, *key))
            found.append(number)
        return found

    def _stretches(self) -> Iterator[tuple[Span, int]]:
        """Each span with its end (exclusive); the first covers the events before any span."""
        begins = [span.begin for span in self._spans]
        yield Span(begin=0, step=0, phase=PHASES[-1]), begins[0] if begins else _FOR_EVER
        yield from zip(self._spans, [*begins[1:], _FOR_EVER], strict=False)

    def _kinds_of(self, at: int, phase: Phase, numbers: range) -> Iterator[int]:
        """`at`: the index of their span; -1 before the first."""
        lives, places, place_of = self._lives, self._places, self._place_of
        labels, names, ends = lives.label, lives.name, lives.end
        stay, compiled = self._stay(at, phase), self._stay(at, "forward")
        where = self._where(at)
        code = PHASES.index(phase)
        is_backward, is_other = phase == "backward", phase == "other"
        known = self._numbers
        for number in numbers:
            place_number = place_of[number]
            place = places[place_number]
            category = labels[number]
            is_recomputed = is_backward and place.is_in_module
            if category == NONE:
                category = place.category
            if category == NONE:
                rule = stay
                if is_recomputed:
                    rule = self._stay_of_recomputed(lives.begin[number])
                elif is_other and place.is_compiled:
                    rule = compiled
                end = ends[number]
                category = rule.category if (_FOR_EVER if end == NONE else end) >= rule.until else _TEMPORARY
            key = (category, names[number], place_number, NONE if is_recomputed else code, where)
            kind = known.get(key)
            if kind is None:
                kind = known[key] = self._kind(*key)
            yield kind

    def _stay(self, at: int, phase: Phase) -> _Stay:
        """The category of blocks kept beyond a phase, and until when they must live."""
        if phase == "forward":
            until = self._next_backward[at + 1] if self._is_training else _NEVER
            return _Stay(until, CATEGORIES.index("activation"))
        if phase == "backward":
            after = self._spans[at + 1].begin if at + 1 < len(self._spans) else _NEVER
            return _Stay(after, CATEGORIES.index("gradient"))
        if phase == "optimizer":
            return _Stay(_FOR_EVER, CATEGORIES.index("optimizer_state"))
        if phase == "other":
            return _Stay(self._next_forward[at + 1], CATEGORIES.index("input"))
        return _Stay(_NEVER, _TEMPORARY)

    def _stay_of_recomputed(self, begin: int) -> _Stay:
        """A recomputed block that still lives when the backward pass resumes is an activation."""
        if self._resumptions is None:
            self._resumptions = self._find_resumptions()
        at = bisect_right(self._resumptions, begin)
        until = self._resumptions[at] if at < len(self._resumptions) else _FOR_EVER
        return _Stay(until, CATEGORIES.index("activation"))

    def _find_resumptions(self) -> list[int]:
        begins = self._lives.begin
        found = []
        for span, until in self._stretches():
            if span.phase == "backward":
                numbers = range(bisect_left(begins, span.begin), bisect_left(begins, until))
                found += [begins[n] for n in numbers if not self._places[self._place_of[n]].is_in_module]
        return found

    def _where(self, at: int) -> str | None:
        """The line that started the span."""
        number = self._spans[at].where if at >= 0 else NONE
        return self._trace.owners[number] if number >= 0 else None

    def _kind(self, category: int, name_number: int, place_number: int, code: int, where: str | None) -> int:
        place = self._places[place_number]
        phase: Phase | Literal["recomputation"] = "recomputation" if code == NONE else PHASES[code]
        name = self._trace.owners[name_number] if name_number >= 0 else None
        module = place.module
        if name is not None and CATEGORIES[category] != "workspace":
            module = _module_of(name)
        kind = BlockKind(
            category=CATEGORIES[category],
            name=name,
            module=module,
            operator=place.operator,
            phase=phase,
            where=place.where or where or place.where_otherwise,
        )
        return self._kinds.setdefault(kind, len(self._kinds))


def _next_begins(spans: Sequence[Span], phases: tuple[Phase, ...], otherwise: int) -> list[int]:
    """For each span index: the begin of the first span at or after it in one of these phases."""
    begins = [otherwise]
    for span in reversed(spans):
        begins.append(span.begin if span.phase in phases else begins[-1])
    return begins[::-1]


def _module_of(name: str) -> str | None:
    """The module in the name of a parameter, which may carry a state's name: `Net.linear.weight (exp_avg)`."""
    module, _, _ = name.partition(" (")[0].rpartition(".")
    return module or None


# --- stacks -----------------------------------------------------------------------------------------------------------

_COMPILED = re.compile(r"[/\\](torch)?inductor(_\w+)?[/\\]\w\w[/\\]")
_FSDP = re.compile(r"[/\\]torch[/\\]distributed[/\\](fsdp|_composable)[/\\]")


def lines_of(trace: Trace) -> Lines:
    return Lines(trace.library_folders, trace.own_folders)


def place_of(trace: Trace, lines: Lines, stack: int, origin: int) -> _Place:
    """Facts from the numbers of a stack and an origin, each NONE if there is none."""
    told = trace.origin(origin)
    frames = [trace.frames[number] for number in (trace.stacks[stack] if stack >= 0 else ())]
    frames = [frame for frame in frames if lines.kind_of(frame[0]) != "foretell"]
    where, kind = lines.choose(frames) or (None, None)
    operator = f"{_stem(frames[0][0])}.{frames[0][2]}" if frames else None
    graph = None
    is_in_module = False
    category: Category | None = None
    for file, line, function in frames:
        is_in_module = is_in_module or function == "_call_impl"
        if not is_in_module:  # frames further out are the callers of the module that allocates
            category = category or _category_of_frame(file, function)
        if graph is None and _COMPILED.search(file):
            graph = f"compiled graph {_stem(file)[:8]}:{line}"
    if told.rule is not None and told.rule.endswith("workspace"):
        category = "workspace"
    return _Place(
        operator=graph or operator_of(told) or operator,
        module=told.module,
        where=where if kind in ("user", "library") else None,
        where_otherwise=where if kind in ("loop", "machinery") else None,
        category=NONE if category is None else CATEGORIES.index(category),
        is_in_module=is_in_module,
        is_compiled=graph is not None,
    )


def operator_of(origin: Origin) -> str | None:
    """`aten.scaled_dot_product_attention (flash)` if the operator chose among implementations."""
    return f"{origin.operator} ({origin.kernel})" if origin.kernel else origin.operator


def _stem(file: str) -> str:
    return re.split(r"[/\\]", file)[-1].removesuffix(".py")


def _category_of_frame(file: str, function: str) -> Category | None:
    """The category that torch's own code implies, where nothing was labelled."""
    if file.endswith(("nn/modules/module.py", "nn\\modules\\module.py")) and function in ("_apply", "convert"):
        return "parameter"
    if file.endswith(("nn/parallel/distributed.py", "nn\\parallel\\distributed.py")):
        return "gradient"  # DDP allocates only its buckets
    if _FSDP.search(file):
        if "reduce" in function:
            return "gradient"
        if "gather" in function or "unshard" in function:
            return "parameter"
    return None
