"""Starts the ranks of a job as forks of this process, as torchrun would start processes: launch.py NUMBER SCRIPT ..."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys


def main() -> int:
    count, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    os.environ.update(WORLD_SIZE=count, LOCAL_WORLD_SIZE=count, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    ranks = {fork(rank): rank for rank in range(int(count))}
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.pop(pid)
        if status and not failed:
            failed = 1
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return failed


def fork(rank: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)
    return pid


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
