"""The host memory of a run: of all its processes, with what they share counted once."""

from __future__ import annotations

import contextlib
import glob
import os


def exceeds(most_bytes: int, pid: int) -> bool:
    """Whether a process and its descendants use more than that.

    Their proportional sizes (PSS) tell, but are slow to read; the resident ones, which count a shared page in every
    process that has it, rule it out most of the time.
    """
    pids = _with_descendants(pid)
    return sum(map(_resident_bytes, pids)) > most_bytes and sum(map(_proportional_bytes, pids)) > most_bytes


def used_by(pid: int) -> int:
    """Bytes of a process and its descendants."""
    return sum(map(_proportional_bytes, _with_descendants(pid)))


def parent_of(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
    return None


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for path in glob.iglob(f"/proc/{each}/task/*/children"):  # by the thread that started them
            with contextlib.suppress(OSError), open(path) as file:
                found += map(int, file.read().split())
    return found


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    return _resident_bytes(pid)  # it has ended, or belongs to somebody else
