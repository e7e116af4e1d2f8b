"""Starts some ranks of a job, or all: those that were asked for, and later each that one of them needs.

Started by path, as `starter.py WORLD WORDS...`, in the place of a launcher: WORLD is the path of a JSON object as
`runs/worlds.py` writes it. Ranks that are Python scripts are forks of this process, which has imported torch once;
others are processes of their own. The ranks ask for others in the pipe `ranks/wanted` of the capture folder.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

WANTED = "ranks/wanted"
LOCAL_RANK = "%LOCAL_RANK%"
"""In the words of the command."""


def main() -> None:
    with open(sys.argv[1]) as file:
        world: dict[str, Any] = json.load(file)
    sys.exit(Starter(world, sys.argv[2:]).run())


class Starter:
    def __init__(self, world: dict[str, Any], words: list[str]) -> None:
        self._world = world
        self._words = words
        self._library: Any = ctypes.CDLL(None)
        self._processes: dict[int, int] = {}
        """The ranks of live processes, by pid."""
        self._exit_code = 0

    def run(self) -> int:
        """Until all ranks have ended; their exit code. If one fails, the others end with it."""
        path = os.path.join(self._world["directory"], WANTED)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        first = self._world["first"]
        if len(first) < self._world["size"]:
            ranks = (ctypes.c_int32 * len(first))(*first)
            are_roles_wanted = int(self._world["are_roles_wanted"])
            self._library.foretell_some_run(self._world["size"], ranks, len(first), are_roles_wanted)
        if self._world["launcher"] == "torchrun" and self._world["per_node"] > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
        if self._world["forks"]:
            import_for_all(self._world["modules"])
        for rank in first:
            self._start(rank)
        while self._processes:
            for rank in self._wanted(pipe):
                self._start(rank)
            self._reap()
        return self._exit_code

    def _start(self, rank: int) -> None:
        environment = environment_of(rank, self._world)
        words = [word.replace(LOCAL_RANK, environment["LOCAL_RANK"]) for word in self._words]
        if self._world["forks"]:
            pid = os.fork()
            if pid == 0:
                os.environ.update(environment)
                run_rank(words)
        else:
            pid = subprocess.Popen(words, env={**os.environ, **environment}).pid
        self._processes[pid] = rank

    def _wanted(self, pipe: int) -> Iterator[int]:
        """Ranks that others ask for, as soon as they do or a process ends."""
        handles = [os.pidfd_open(pid) for pid in self._processes]
        try:
            select.select([pipe, *handles], [], [])
        finally:
            for handle in handles:
                os.close(handle)
        try:
            yield from map(int, os.read(pipe, 4096).split())
        except BlockingIOError:
            return

    def _reap(self) -> None:
        while self._processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            rank = self._processes.pop(pid, None)
            if rank is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            self._library.foretell_has_gone(rank, int(code != 0))
            if code and not self._exit_code:
                self._exit_code = code if code > 0 else 128 - code
                for other in self._processes:
                    os.kill(other, signal.SIGTERM)


def import_for_all(modules: list[str]) -> None:
    """torch, and what else the ranks would import anyway."""
    try:
        importlib.import_module("torch")
    except ImportError:  # the script fails with the error
        return
    fork_server().import_all(modules)


def fork_server() -> Any:
    return importlib.import_module("foretell_child.inside.start.fork_server")


def run_rank(words: list[str]) -> NoReturn:
    server = fork_server()
    server.leave_what_is_the_servers()
    server.run_to_its_end(words)
    raise AssertionError("it has ended")


def environment_of(rank: int, world: dict[str, Any]) -> dict[str, str]:
    """What the launcher would set for this rank."""
    size, per_node = world["size"], world["per_node"]
    node, local = divmod(rank, per_node)
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": min(per_node, size - node * per_node),
        "NODE_RANK": node,
    }
    num_nodes = -(-size // per_node)
    if world["launcher"] == "torchrun":
        numbers |= {
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": num_nodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
    elif world["launcher"] == "srun":
        numbers |= {
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": local,
            "SLURM_NODEID": node,
            "SLURM_NTASKS": size,
            "SLURM_NPROCS": size,
            "SLURM_NNODES": num_nodes,
            "SLURM_JOB_NUM_NODES": num_nodes,
            "SLURM_NTASKS_PER_NODE": per_node,
        }
    elif world["launcher"] == "mpirun":
        numbers |= {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_NODE_RANK": node,
            "OMPI_COMM_WORLD_SIZE": size,
            "OMPI_COMM_WORLD_LOCAL_SIZE": min(per_node, size - node * per_node),
            "PMI_RANK": rank,
            "PMI_SIZE": size,
        }
    elif world["launcher"] == "deepspeed":
        numbers |= {"CROSS_RANK": node, "CROSS_SIZE": num_nodes, "LOCAL_SIZE": per_node}
    return {**world["environment"], **{name: str(number) for name, number in numbers.items()}}


if __name__ == "__main__":
    main()
