"""A function as a job: pickled here, called in the child by `inside/start/call.py`."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretell.errors import UsageError
from foretell.jobs import Job

_CALLER = Path(__file__).parent.parent / "inside" / "start" / "call.py"
_CALL, _RESULT = "call.pickle", "call.pickle.result"


def pickled(
    function: Callable[..., object],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    keeps_result: bool = False,
) -> bytes:
    """The call in the form of `Job.call`. With `keeps_result`, the return value is pickled too, for `result_of`."""
    import cloudpickle

    try:
        payload = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise UsageError(
            f"{name_of(function)} and its arguments must be picklable to run in a child process: "
            f"{type(error).__name__}: {error}. Create models, data loaders and files inside the function."
        ) from None
    return pickle.dumps((list(sys.path), keeps_result)) + bytes(payload)


def name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def words_of(job: Job, directory: Path) -> tuple[str, ...]:
    """The job's command; for a function, the script that calls it, with the pickled call in the capture folder."""
    if not job.call:
        return job.command
    (directory / _CALL).write_bytes(job.call)
    return (str(_CALLER), str(directory / _CALL))


def result_of(directory: Path) -> Any:
    """The return value of the function; also None if it did not return."""
    path = directory / _RESULT
    return pickle.loads(path.read_bytes()) if path.exists() else None
