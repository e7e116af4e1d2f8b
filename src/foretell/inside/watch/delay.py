"""How long others kept this thread from running: what a busy machine adds to the times that are measured on it."""

from __future__ import annotations


def delay_ns() -> int:
    """How long this thread was ready to run, but another had the CPU, since it started."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
