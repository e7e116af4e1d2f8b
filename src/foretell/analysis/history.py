"""One pass over the memory history of a device: bytes after every event, block lifetimes, the peak."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from foretell.allocator.follow import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SMALL_SEGMENT_BYTES,
    Heap,
    settings_of,
)
from foretell.records import CATEGORIES, Category, Segment
from foretell.trace import Trace

NONE = -1
_column = partial(array, "q")
# More specific labels win: a gradient may be a view of memory that belongs to its parameter.
_BY_RANK: tuple[Category, ...] = (
    "parameter", "buffer", "optimizer_state", "gradient", "workspace", "activation", "input", "temporary",
)  # fmt: skip
_RANK = [_BY_RANK.index(category) for category in CATEGORIES]


@dataclass(slots=True)
class Lives:
    """Blocks from allocation to free, in columns and in order of allocation."""

    address: array[int] = field(default_factory=partial(array, "Q"))
    bytes: array[int] = field(default_factory=_column)
    requested_bytes: array[int] = field(default_factory=_column)
    begin: array[int] = field(default_factory=_column)
    end: array[int] = field(default_factory=_column)
    """NONE: held to the end."""
    completed: array[int] = field(default_factory=_column)
    """The event at which no other stream used it any more; NONE: never."""
    label: array[int] = field(default_factory=_column)
    """Index into CATEGORIES; NONE: not labelled."""
    name: array[int] = field(default_factory=_column)
    """Index into Trace.owners; NONE: no name."""


@dataclass(slots=True)
class History:
    """The result of the pass. Events are numbered from 0 among those of the device."""

    device: int
    rows: Sequence[int]
    """The same events, as numbers among those of all devices."""
    lives: Lives = field(default_factory=Lives)
    allocated: array[int] = field(default_factory=_column)
    """After each event."""
    reserved: array[int] = field(default_factory=_column)
    resizes: list[int] = field(default_factory=list)
    """Events that are neither allocations nor frees; most allocate or free memory of the card."""
    peak_bytes: int = 0
    peak_event: int = NONE
    """The event at which allocated memory first reached its peak."""


def follow(trace: Trace, device: int) -> History:
    """Follow the history of one device; an inconsistent one raises `ReplayError`."""
    memory = trace.memory
    history = History(device=device, rows=rows_of(memory.device, device))
    heap = Heap(settings_of(memory.action, trace.allocator))
    allocate, request_free, complete_free, resize = (
        heap.allocate, heap.request_free, heap.complete_free, heap.resize,
    )  # fmt: skip
    rows = history.rows
    columns: tuple[array[int], ...] = (memory.action, memory.address, memory.size)
    if len(rows) < len(memory.action):
        columns = tuple(array(column.typecode, map(column.__getitem__, rows)) for column in columns)
    lives = history.lives = _unlabelled(*columns)
    end, completed, add_bytes = lives.end, lives.completed, lives.bytes.append
    add_allocated, add_reserved = history.allocated.append, history.reserved.append
    labels = _LabelsInOrder(trace, device)
    next_label = labels.next_row
    num_lives = allocated = peak = 0
    reserved = heap.reserved_bytes
    for event, (row, action, address, size) in enumerate(zip(rows, *columns, strict=True)):
        if next_label <= row:
            next_label = labels.apply(row, heap, lives)
        if action == ALLOC:
            num_bytes = allocate(num_lives, address, size).size
            allocated += num_bytes
            add_bytes(num_bytes)
            num_lives += 1
            if allocated > peak:
                peak, history.peak_event = allocated, event
        elif action == FREE_REQUESTED:
            piece = request_free(address)
            allocated -= piece.size
            end[piece.number] = event
        elif action == FREE_COMPLETED:
            completed[complete_free(address)] = event
        else:
            resize(event, action, address, size)
            reserved = heap.reserved_bytes
            history.resizes.append(event)
        add_allocated(allocated)
        add_reserved(reserved)
    labels.apply(len(memory.action), heap, lives)
    history.peak_bytes = peak
    return history


def _unlabelled(actions: array[int], addresses: array[int], sizes: array[int]) -> Lives:
    """The columns known before the pass: all but block sizes, ends and labels."""
    begin = array("q", [event for event, action in enumerate(actions) if action == ALLOC])
    nothing = array("q", [NONE]) * len(begin)
    return Lives(
        address=array("Q", map(addresses.__getitem__, begin)),
        requested_bytes=array("q", map(sizes.__getitem__, begin)),
        begin=begin,
        end=nothing[:],
        completed=nothing[:],
        label=nothing[:],
        name=nothing[:],
    )


def rows_of(devices: array[int], device: int) -> Sequence[int]:
    """The numbers of the events of one device."""
    if devices.count(device) == len(devices):
        return range(len(devices))
    return [row for row, of in enumerate(devices) if of == device]


class _LabelsInOrder:
    def __init__(self, trace: Trace, device: int) -> None:
        labels = trace.labels
        self._row = labels.event
        self._columns = labels.address, labels.category, labels.name
        self._device = labels.device if len(set(labels.device) - {device}) else None
        self._of = device
        self._at = 0
        self._num = len(labels.event)
        self._never = len(trace.memory.action) + 1
        self.next_row = self._row[0] if self._num else self._never

    def apply(self, row: int, heap: Heap, lives: Lives) -> int:
        """Apply the labels that precede this event; returns the event before which the next label comes."""
        addresses, categories, names = self._columns
        rows, at, num = self._row, self._at, self._num
        allocated_at, label, name_of = heap.allocated_at, lives.label, lives.name
        views: _Views | None = None
        while at < num and rows[at] <= row:
            number, at = at, at + 1
            if self._device is not None and self._device[number] != self._of:
                continue
            piece = allocated_at(addresses[number])
            if piece is None:
                views = views or _Views(heap)
                life = views.holder(addresses[number])
                if life == NONE:
                    continue
            else:
                life = piece.number
            category, name = categories[number], names[number]
            known = label[life]
            if known == NONE or _RANK[category] < _RANK[known]:
                label[life], name_of[life] = category, NONE
                known = category
            if known == category and name_of[life] == NONE:
                name_of[life] = name
        self._at = at
        self.next_row = rows[at] if at < num else self._never
        return self.next_row


class _Views:
    """Finds the block that contains an address."""

    def __init__(self, heap: Heap) -> None:
        self._held = heap.held()
        self._addresses = sorted(self._held)

    def holder(self, address: int) -> int:
        before = bisect_right(self._addresses, address)
        if not before:
            return NONE
        piece = self._held[self._addresses[before - 1]]
        return piece.number if address < piece.address + piece.size else NONE


# --- segments ---------------------------------------------------------------------------------------------------------


def segments_at_peak(trace: Trace, history: History) -> tuple[Segment, ...]:
    """The segments after the event of the peak, with their blocks. A gap between blocks in use is one free block,
    because the allocator merges neighbours."""
    lives, peak = history.lives, history.peak_event
    taken: list[tuple[int, int, int | None]] = []
    for number in range(bisect_right(lives.begin, peak)):
        end, completed = lives.end[number], lives.completed[number]
        if end == NONE or end > peak:
            taken.append((lives.address[number], lives.bytes[number], number))
        elif completed == NONE or completed > peak:  # waiting for another stream: neither free nor in use
            taken.append((lives.address[number], lives.bytes[number], None))
    taken.sort(key=lambda each: each[0])
    starts = [address for address, _, _ in taken]
    segments = []
    for address, size in _mapped(trace, [history.rows[event] for event in history.resizes if event <= peak]):
        within = taken[bisect_left(starts, address) : bisect_left(starts, address + size)]
        parts = tuple(_parts(address, size, within))
        segments.append(Segment(address=address, bytes=size, is_small=size <= SMALL_SEGMENT_BYTES, parts=parts))
    return tuple(segments)


def _parts(address: int, size: int, taken: Sequence[tuple[int, int, int | None]]) -> list[tuple[int, int, int | None]]:
    parts: list[tuple[int, int, int | None]] = []
    at = address
    for begin, num_bytes, block in taken:
        if begin > at:
            parts.append((at - address, begin - at, None))
        parts.append((begin - address, num_bytes, block))
        at = begin + num_bytes
    if at < address + size:
        parts.append((at - address, address + size - at, None))
    return parts


def _mapped(trace: Trace, rows: Sequence[int]) -> list[tuple[int, int]]:
    """Address and bytes of each segment after these events. Adjacent pages of expandable segments are one segment."""
    memory = trace.memory
    segments: dict[int, int] = {}
    pages: dict[int, int] = {}
    for row in rows:
        action, address, size = memory.action[row], memory.address[row], memory.size[row]
        if action == SEGMENT_ALLOC:
            segments[address] = size
        elif action == SEGMENT_FREE and address in segments:
            del segments[address]
        elif action == SEGMENT_MAP:
            _map(pages, address, size)
        elif action in (SEGMENT_UNMAP, SEGMENT_FREE):
            _unmap(pages, address, size)
    return sorted([*segments.items(), *pages.items()])


def _map(pages: dict[int, int], address: int, size: int) -> None:
    size += pages.pop(address + size, 0)
    before = next((begin for begin, length in pages.items() if begin + length == address), None)
    if before is None:
        pages[address] = size
    else:
        pages[before] += size


def _unmap(pages: dict[int, int], address: int, size: int) -> None:
    begin = next(begin for begin, length in pages.items() if begin <= address < begin + length)
    length = pages.pop(begin)
    if address > begin:
        pages[begin] = address - begin
    if begin + length > address + size:
        pages[address + size] = begin + length - address - size
