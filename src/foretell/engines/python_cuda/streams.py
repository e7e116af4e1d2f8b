"""Streams and events: numbers, since nothing runs on them."""

from __future__ import annotations

import itertools
from typing import Any

from .memory import Memory


class Stream:
    """torch.cuda.Stream; make_classes binds it to a card."""

    _memory: Memory
    _device: Any
    _numbers: itertools.count[int]
    _event_class: type[Event]
    device_index = 0
    device_type = 1
    priority = 0

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **kwargs: Any) -> None:
        self.stream_id = next(self._numbers) if stream_id is None else stream_id
        self.priority = priority

    @property
    def device(self) -> Any:
        return self._device

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def _as_parameter_(self) -> int:
        return self.stream_id

    def synchronize(self) -> None:
        self._memory.allocator.synchronize(self.stream_id)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = event if event is not None else self._event_class()
        event.record(self)
        return event

    def __enter__(self) -> Any:
        where = self._memory.where
        self._before, where.stream = where.stream, self.stream_id
        return self

    def __exit__(self, *failure: Any) -> None:
        self._memory.where.stream = self._before

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self._device} cuda_stream={self.stream_id:#x}>"


class Event:
    """torch.cuda.Event"""

    _memory: Memory

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._stream_id: int | None = None
        self._num_launches = 0

    def record(self, stream: Any = None) -> None:
        self._stream_id = self._memory.where.stream if stream is None else stream.stream_id
        self._num_launches = self._memory.allocator.num_launches

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self._stream_id is not None:
            self._memory.allocator.synchronize(self._stream_id, until=self._num_launches)

    def elapsed_time(self, other: Any) -> float:
        return 1.0  # milliseconds; nothing takes time here


def make_classes(torch: Any, memory: Memory) -> tuple[type, type, type]:
    """Stream, ExternalStream and Event for one card."""

    class CardEvent(Event):
        _memory = memory

    class CardStream(Stream):
        _memory = memory
        _device = torch.device("cuda", 0)
        _numbers = itertools.count(1)
        _event_class = CardEvent

    class ExternalStream(CardStream):
        def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
            super().__init__(stream_id=stream_ptr)

    CardEvent.__name__, CardStream.__name__ = Event.__name__, Stream.__name__
    return CardStream, ExternalStream, CardEvent
