"""A trace as a PyTorch memory snapshot, in the format of `torch.cuda.memory._dump_snapshot`.

https://pytorch.org/memory_viz and `python -m torch.cuda._memory_viz` read it. The keys are those of torch 2.15, which
readers of older versions accept. foretell adds the holder of a block, if known: as leading frames with names like
`<nn.Module>`, and as the `category` by which the page colours the timeline.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from foretell.allocator import AllocatorSettings
from foretell.allocator.follow import SMALL_SEGMENT_BYTES, Heap, Piece, ReplayError, settings_of
from foretell.errors import UnsupportedError
from foretell.records import Attribution, BlockKind, Blocks
from foretell.trace import ACTIONS, Trace

_PROTOCOL = 4
"""The newest pickle protocol the page reads."""
_OUR_FRAMES = "/foretell/inside/"
_NO_CATEGORY = "unknown"
"""The page fails on categories without this one."""

_Json = dict[str, Any]


def render(trace: Trace, attribution: Attribution | None = None) -> bytes:
    return pickle.dumps(snapshot_of(trace, attribution), protocol=_PROTOCOL)


def snapshot_of(trace: Trace, attribution: Attribution | None = None) -> _Json:
    """The state at the end of the history, and the history."""
    frames = _Frames(trace)
    histories = [_History(trace, device, frames, attribution) for device in _devices(trace)]
    try:
        return {
            "segments": [segment for history in histories for segment in history.segments()],
            "device_traces": [history.entries() for history in histories],
            "allocator_settings": _settings(trace.allocator),
            "external_annotations": [note for history in histories for note in history.annotations()],
        }
    except ReplayError as error:
        raise UnsupportedError(f"cannot make a snapshot of this run: {error}.") from None


def _devices(trace: Trace) -> range:
    return range(max(trace.memory.device, default=0) + 1)


class _History:
    """The events of one device, numbered from 0."""

    def __init__(self, trace: Trace, device: int, frames: _Frames, attribution: Attribution | None) -> None:
        memory = trace.memory
        self._trace = trace
        self._device = device
        self._rows = [row for row, of in enumerate(memory.device) if of == device]
        self._attribution = attribution if attribution is not None and attribution.device == device else None
        blocks = Blocks.of(self._attribution.blocks if self._attribution else ())
        self._kinds = blocks.kinds
        self._kind_at = dict(zip(blocks.begin, blocks.kind, strict=True))
        """For allocations, by event number."""
        told = (self._kind(number) for number in range(len(self._rows)))
        self._frames = [
            frames.of(memory.stack[row], memory.origin[row], kind) for row, kind in zip(self._rows, told, strict=True)
        ]

    def _kind(self, event: int) -> BlockKind | None:
        number = self._kind_at.get(event)
        return None if number is None else self._kinds[number]

    def entries(self) -> list[_Json]:
        memory, entries = self._trace.memory, []
        frames_at: dict[int, list[_Json]] = {}
        for number, row in enumerate(self._rows):
            action, address, frames = ACTIONS[memory.action[row]], memory.address[row], self._frames[number]
            if action == "alloc":
                frames_at[address] = frames
            elif action.startswith("free"):  # PyTorch gives the stack of the allocation there
                frames = frames_at.get(address, frames)
            entry = {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": memory.size[row],
                "stream": memory.stream[row],
                "time_us": memory.time_us[row],
                "frames": frames,
            }
            if self._kinds:
                kind = self._kind(number)
                entry["category"] = kind.category if kind else _NO_CATEGORY
            entries.append(entry)
        return entries

    def segments(self) -> Iterator[_Json]:
        memory = self._trace.memory
        heap = Heap(settings_of(memory.action, self._trace.allocator))
        for number, row in enumerate(self._rows):
            heap.follow(number, memory.action[row], memory.address[row], memory.size[row])
        for pieces in heap.segments():
            origin = pieces[0].segment
            row = self._rows[origin]
            is_expandable = ACTIONS[memory.action[row]] == "segment_map"
            yield {
                "device": self._device,
                "address": pieces[0].address,
                "total_size": sum(piece.size for piece in pieces),
                "allocated_size": sum(piece.size for piece in pieces if piece.is_allocated),
                "active_size": sum(piece.size for piece in pieces if not piece.is_free),
                "requested_size": sum(piece.requested_bytes for piece in pieces if not piece.is_free),
                "stream": memory.stream[row],
                "segment_type": "small" if memory.size[row] == SMALL_SEGMENT_BYTES else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": is_expandable,
                "frames": [] if is_expandable else self._frames[origin],
                "blocks": [self._block(piece) for piece in pieces],
            }

    def _block(self, piece: Piece) -> _Json:
        in_use = "active_allocated" if piece.is_allocated else "active_pending_free"
        return {
            "address": piece.address,
            "size": piece.size,
            "requested_size": piece.requested_bytes,
            "state": "inactive" if piece.is_free else in_use,
            "frames": [] if piece.is_free else self._frames[piece.number],
        }

    def annotations(self) -> list[_Json]:
        """Steps and, if known, phases, in the form PyTorch uses for `record_function` ranges."""
        if not self._rows:
            return []
        times = [self._trace.memory.time_us[row] for row in self._rows]
        notes: list[_Json] = []

        def note(name: str, begin: int, end: int) -> None:
            for stage, time_us in (("START", begin), ("END", end)):
                notes.append({"stage": stage, "name": name, "device": self._device, "time_us": time_us})

        last_us = times[0]
        for mark in self._trace.steps:
            note(f"step {mark.index}", last_us, mark.time_us)
            last_us = mark.time_us
        spans = self._attribution.spans if self._attribution else ()
        # The last spans may begin after the last event.
        begins = [min(span.begin, len(times) - 1) for span in spans] + [len(times) - 1]
        for span, (begin, end) in zip(spans, pairwise(begins), strict=True):
            if span.phase != "other" and begin < end:
                note(span.phase, times[begin], times[end])
        return sorted(notes, key=lambda each: each["time_us"])


class _Frames:
    """The frames of every stack, built once: events share them, and so does the file."""

    def __init__(self, trace: Trace) -> None:
        self._named: dict[tuple[str, int, str], _Json] = {}
        self._known: dict[tuple[int, int, BlockKind | None], list[_Json]] = {(-1, -1, None): []}
        self._trace = trace

    def of(self, stack: int, origin: int, kind: BlockKind | None) -> list[_Json]:
        """Facts about the allocation, then the stack, innermost first. foretell's own frames are left out."""
        key = (stack, origin, kind)
        known = self._known.get(key)
        if known is None:
            places = [self._trace.frames[number] for number in self._trace.stacks[stack]] if stack >= 0 else []
            leading = [(file, 0, name) for file, name in self._told(origin, kind)]
            shown = [place for place in places if _OUR_FRAMES not in place[0]]
            known = self._known[key] = [self._frame(place) for place in (*leading, *shown)]
        return known

    def _told(self, number: int, kind: BlockKind | None) -> Iterator[tuple[str, str]]:
        """Pairs of file and function: the kind of fact, and its value."""
        origin = self._trace.origin(number)
        if kind is not None:
            yield "<category>", f"{kind.category} {kind.name}" if kind.name else kind.category
        if origin.rule is not None:
            yield "<rule>", origin.rule
        operator = f"{origin.operator} ({origin.kernel})" if origin.kernel else origin.operator
        for file, of_block, own in (
            ("<operator>", kind and kind.operator, operator),
            ("<nn.Module>", kind and kind.module, origin.module),
            ("<phase>", kind and kind.phase, origin.phase),
        ):
            name = own or of_block
            if name is not None:
                yield file, name
        while origin.caller is not None:
            origin = self._trace.origin(origin.caller)
            if origin.operator is not None:
                yield "<operator>", origin.operator

    def _frame(self, place: tuple[str, int, str]) -> _Json:
        filename, line, name = place
        return self._named.setdefault(place, {"filename": filename, "line": line, "name": name})


def _settings(settings: AllocatorSettings) -> _Json:
    divisions: Sequence[int] = settings.power2_divisions or [0] * 16
    return {
        "max_split_size": -1 if settings.max_split_bytes == sys.maxsize else settings.max_split_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.is_expandable,
        "roundup_power2_divisions": {str(1 << number): parts for number, parts in enumerate(divisions)},
    }
