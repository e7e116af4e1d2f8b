"""Streams and events: numbers, since nothing runs on them."""

from __future__ import annotations

from typing import Any


def make_classes(torch: Any, memory: Any) -> tuple[type, type, type]:
    where = memory.where
    device = torch.device("cuda", 0)
    num_streams = 0

    class Stream:
        device_index = 0
        device_type = 1
        priority = 0

        def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **kwargs: Any) -> None:
            nonlocal num_streams
            if stream_id is None:
                num_streams += 1
                stream_id = num_streams
            self.stream_id = stream_id
            self.priority = priority

        @property
        def device(self) -> Any:
            return device

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        @property
        def _as_parameter_(self) -> int:
            return self.stream_id

        def synchronize(self) -> None:
            memory.allocator.synchronize(self.stream_id)

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def wait_stream(self, stream: Any) -> None:
            pass

        def wait_event(self, event: Any) -> None:
            pass

        def record_event(self, event: Any = None) -> Any:
            event = event if event is not None else Event()
            event.record(self)
            return event

        def __enter__(self) -> Any:
            self._before = where.stream
            where.stream = self.stream_id
            return self

        def __exit__(self, *failure: Any) -> None:
            where.stream = self._before

        def __eq__(self, other: Any) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __hash__(self) -> int:
            return hash(self.stream_id)

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={device} cuda_stream={self.stream_id:#x}>"

    class ExternalStream(Stream):
        def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
            super().__init__(stream_id=stream_ptr)

    class Event:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._stream_id: int | None = None
            self._num_launches = 0

        def record(self, stream: Any = None) -> None:
            self._stream_id = where.stream if stream is None else stream.stream_id
            self._num_launches = memory.allocator.num_launches

        def wait(self, stream: Any = None) -> None:
            pass

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            if self._stream_id is not None:
                memory.allocator.synchronize(self._stream_id, until=self._num_launches)

        def elapsed_time(self, other: Any) -> float:
            return 1.0  # milliseconds; nothing takes time here

    return Stream, ExternalStream, Event
