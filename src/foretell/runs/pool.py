"""Many jobs at once: workers that each hold processes for them, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar

from foretell.errors import UnsupportedError, UsageError
from foretell.runs.warm import Warm

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Workers = int | str
"""A number of workers on this machine, or a Ray cluster: `ray` ($RAY_ADDRESS, or one on this machine) or
`ray://HOST:PORT`."""


def parse_workers(text: str) -> Workers:
    """Parse the value of `--workers`."""
    if text.isdecimal() and len(text) < 6 and int(text) > 0:
        return int(text)
    if text == "ray" or (text.startswith("ray://") and len(text) > len("ray://")):
        return text
    raise UsageError(
        f"--workers {text}: must be a number (1 or more), ray, or the address of a Ray cluster (ray://HOST:PORT)."
    )


class Held(Protocol):
    """What a worker has for its work, from one item to the next."""

    def close(self) -> None: ...


class Pool:
    """Runs `work(item, held)` for many items, most often as `api.run(job, warm=held)`. With workers on a cluster,
    `work`, its items and its results must be picklable."""

    def __init__(
        self, workers: Workers, *, modules: Sequence[str] = (), holds: Callable[[], Held] | None = None
    ) -> None:
        """`holds` makes what a worker holds; None: warm processes (`Warm`), with these `modules`."""
        make = holds or partial(Warm, modules=tuple(modules))
        self._disconnect: Callable[[], None] = lambda: None
        self._workers: list[_Worker]
        if isinstance(workers, int):
            self._workers = [_LocalWorker(make) for _ in range(workers)]
        else:
            self._disconnect = _connect(workers)
            self._workers = _on_ray(workers, make)
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(len(self._workers), thread_name_prefix="foretell-worker")

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def submit(self, work: Callable[[_Item, Any], _Result], item: _Item) -> Future[_Result]:
        """Queued work can be cancelled (`Future.cancel`); running work has its time limit, and ends with `close`."""
        return self._threads.submit(self._run, work, item)

    def map(self, work: Callable[[_Item, Any], _Result], items: Iterable[_Item]) -> Iterator[tuple[_Item, _Result]]:
        """Results in order of completion. An exception is raised here and cancels the rest."""
        waiting = {self.submit(work, item): item for item in items}
        try:
            for done in as_completed(waiting):
                yield waiting.pop(done), done.result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Cancel queued work, stop running work, and end all processes of the workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(wait=True)
        self._disconnect()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, work: Callable[[_Item, Any], _Result], item: _Item) -> _Result:
        worker = self._idle.get()  # there are as many threads as workers
        try:
            result: _Result = worker.run(work, item)
            return result
        finally:
            self._idle.put(worker)


class _Worker(Protocol):
    def run(self, work: Callable[[Any, Any], Any], item: Any) -> Any: ...

    def close(self) -> None: ...


class _LocalWorker:
    def __init__(self, make: Callable[[], Held]) -> None:
        self._held = make()

    def run(self, work: Callable[[Any, Any], Any], item: Any) -> Any:
        return work(item, self._held)

    def close(self) -> None:
        self._held.close()


# --- Ray --------------------------------------------------------------------------------------------------------------

_REACH_SECONDS = 10.0
_CONNECT_ATTEMPTS = 4
_SET_BY_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Set in the processes of its workers; the jobs must have the values of this process instead."""


def _connect(address: str) -> Callable[[], None]:
    """Connect to the cluster; returns a function that disconnects. An existing connection is kept."""
    try:
        import ray
    except ImportError:
        raise UnsupportedError(f"--workers {address} needs Ray: pip install 'foretell[ray]'.") from None
    if ray.is_initialized():
        return lambda: None
    where = address if "://" in address else os.environ.get("RAY_ADDRESS", "auto")
    try:
        _reach(where)
        _init(ray, where)
    except Exception as error:  # Ray has no exception class for this
        lines = (str(error).strip() or type(error).__name__).splitlines()
        reason = " ".join(dict.fromkeys((lines[0], lines[-1])))  # the last line of a traceback says what happened
        raise UnsupportedError(
            f"--workers {address}: no Ray cluster responds ({reason}). Start one (ray start --head), set "
            "RAY_ADDRESS, or give a number of workers on this machine."
        ) from None
    return lambda: ray.shutdown()


def _init(ray: Any, address: str) -> None:
    """Connect. Ray's proxy forks a server for each client, and the fork can die of gRPC's threads ("Starting Ray client
    server failed"); the next attempt is another fork."""
    for attempts_left in reversed(range(_CONNECT_ATTEMPTS)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
            return
        except ConnectionAbortedError:
            if not attempts_left:
                raise


def _on_ray(address: str, make: Callable[[], Held]) -> list[_Worker]:
    """One worker per CPU of the cluster."""
    import ray

    num_cpus = int(ray.cluster_resources().get("CPU", 0))
    if num_cpus < 1:
        raise UnsupportedError(f"--workers {address}: the Ray cluster has no CPUs.")
    here = {name: os.environ.get(name) for name in _SET_BY_RAY}
    actor = ray.remote(num_cpus=1)(_Actor)
    return [_RayWorker(ray, actor.remote(make, here)) for _ in range(num_cpus)]


def _reach(address: str) -> None:
    """Fail fast: Ray would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()


class _Actor:
    """Runs in a process of the cluster."""

    def __init__(self, make: Callable[[], Held], variables: dict[str, str | None]) -> None:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._worker = _LocalWorker(make)

    def run(self, work: Callable[[Any, Any], Any], item: Any) -> Any:
        return self._worker.run(work, item)


class _RayWorker:
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor

    def run(self, work: Callable[[Any, Warm], Any], item: Any) -> Any:
        return self._ray.get(self._actor.run.remote(work, item))

    def close(self) -> None:
        """The processes it holds end when their input is closed (`inside/start/fork_server.py`, `learn/worker.py`)."""
        self._ray.kill(self._actor)
