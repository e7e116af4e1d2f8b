"""Runs as forks of a process that has imported torch: what a process of its own does, in a tenth of its time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from foretell.errors import UnsupportedError
from foretell.runs.command import Command
from foretell.runs.contained import not_started, specification
from foretell.runs.imports import worth_importing
from foretell.runs.lines import JsonLines
from foretell.runs.scratch import scratch_folder
from foretell.runs.waiting import (
    KILLED_SECONDS,
    Ended,
    Program,
    Watch,
    end_everything,
    see_to_its_end,
)

_SERVER = Path(__file__).parent.parent / "inside" / "start" / "fork_server.py"
_ONLY_IN_FORKS = ("FORETELL_CAPTURE", "FORETELL_DEVICE", "FORETELL_WORKSPACES")
_READ_AT_THE_START = ("LD_", "PYTHON", "OMP_", "MKL_", "HF_", "TRANSFORMERS_")
"""Variables, by how their names begin, that Python, torch and its friends read when they start or are imported: a fork
cannot have others than the process it is forked from."""


class Warm:
    """Warm processes, one for each Python and each environment that only a new process can have. They are started when
    first needed, and again when they have died. One run at a time."""

    def __init__(self, *, modules: Sequence[str] = ()) -> None:
        """`modules` are imported before the forks, beside those that are worth it by the script's own imports."""
        self._modules = dict.fromkeys(modules)
        self._folders = contextlib.ExitStack()
        self._folder: Path | None = None
        self._servers: dict[tuple[str, ...], _Server] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def is_started(self) -> bool:
        return bool(self._servers)

    def can_fork(self, command: Command) -> bool:
        """Python itself, with a script or -m MODULE; not with options of its own, nor through another program."""
        if command.python is None or command.python != command.argv[0] or len(command.argv) < 2:
            return False
        first = command.argv[1]
        return not first.startswith("-") or (first == "-m" and len(command.argv) > 2)

    def add_modules(self, modules: Iterable[str]) -> None:
        """For all runs from now on."""
        self._modules |= dict.fromkeys(modules)

    def run(self, program: Program, watch: Watch) -> Ended:
        """To its end. Its output is in files: `program` says which."""
        server = self._server(program)
        wanted = (*self._modules, *worth_importing(program.argv[1:], program.cwd))
        return see_to_its_end(_Fork(server, program, server.not_yet(wanted)), program, watch)

    def close(self) -> None:
        """Ends them and what they run, for good. From another thread it ends the run that is under way."""
        with self._lock:
            self._is_closed = True
            for server in self._servers.values():
                server.close()
            self._servers.clear()
        self._folders.close()
        self._folder = None

    def _server(self, program: Program) -> _Server:
        fixed = [f"{name}={value}" for name, value in sorted(program.environment.items())
                 if name.startswith(_READ_AT_THE_START)]  # fmt: skip
        sees_card = "FORETELL_LOG" in program.environment
        key = (program.argv[0], str(sees_card), *fixed)
        with self._lock:
            if self._is_closed:
                raise _cancelled()
            server = self._servers.get(key)
            if server is None or not server.is_alive():
                self._folder = self._folder or self._folders.enter_context(scratch_folder("warm-"))
                server = self._servers[key] = _Server(program, self._folder / str(len(self._servers)))
        server.wait_until_ready()
        return server


def _cancelled() -> UnsupportedError:
    return UnsupportedError("cancelled; the warm processes have been stopped.")


class _Server:
    """`inside/start/fork_server.py`, in the environment of its first run but for what only a fork may read."""

    def __init__(self, program: Program, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        self.environment = {name: value for name, value in program.environment.items() if name not in _ONLY_IN_FORKS}
        if "FORETELL_LOG" in self.environment:
            self.environment["FORETELL_LOG"] = str(folder / "native")
        self.fork_pid: int | None = None
        self._is_closed = False
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                [program.argv[0], str(_SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                bufsize=0, start_new_session=True, env=self.environment,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._lines = JsonLines(self._process.stdout.fileno())
        self._is_ready = False
        self._imported: set[str] = set()

    def wait_until_ready(self) -> None:
        if not self._is_ready and self.read(None) is None:
            raise UnsupportedError(f"torch could not be imported:\n{self.last_words()}")
        self._is_ready = True

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def not_yet(self, modules: Iterable[str]) -> list[str]:
        """Those of them it was not asked to import before."""
        wanted = [name for name in dict.fromkeys(modules) if name not in self._imported]
        self._imported.update(wanted)
        return wanted

    def ask(self, question: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # told by the answer that does not come
            self._process.stdin.write(json.dumps(question).encode() + b"\n")

    def read(self, seconds: float | None) -> dict[str, Any] | None:
        """The next line, None when it has died or was closed; TimeoutError when none has come after so long."""
        line = self._lines.read(seconds)
        return None if self._is_closed else line

    def died(self) -> UnsupportedError:
        was_closed = self._is_closed
        self.close()
        if was_closed:
            return _cancelled()
        return UnsupportedError(f"the warm process died. Its last output:\n{self.last_words()}")

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
        return ""

    def close(self) -> None:
        self._is_closed = True  # first: how a fork that is killed here has ended is no result
        for pid in (self.fork_pid, self._process.pid):
            if pid is not None:
                _end_group(pid)
        self._process.wait()


def _end_group(leader: int) -> None:
    """And waits for the leader's end, which need not be our child."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(leader)
        try:
            os.killpg(leader, signal.SIGKILL)
            select.select([handle], [], [])
        finally:
            os.close(handle)


class _Fork:
    """A run, as `waiting.Child`."""

    def __init__(self, server: _Server, program: Program, modules: Sequence[str]) -> None:
        assert isinstance(program.stdout, Path), program.stdout
        assert isinstance(program.stderr, Path), program.stderr
        self._server = server
        self._is_contained = program.containment is not None
        self._is_over = False
        self._exit_status: int | UnsupportedError | None = None
        server.ask(
            {
                "argv": program.argv[1:],
                "environment": _changes(server.environment, program.environment),
                "cwd": str(program.cwd),
                "stdout": str(program.stdout),
                "stderr": str(program.stderr),
                "modules": list(modules),
                "containment": specification(program.containment, program) if program.containment else None,
            }
        )
        answer = server.read(None)
        if answer is None:
            raise server.died()
        if "pid" not in answer:
            reason = answer or {"failed": "the first process inside has died"}
            while answer:  # the last one is empty, and must not be left for the next run
                answer = server.read(None)
            raise not_started(reason)
        self.pid: int = answer["pid"]
        self.read_only: tuple[str, ...] = tuple(answer.get("read_only", ()))
        self.is_in_memory: bool = answer.get("is_in_memory", False)
        server.fork_pid = self.pid

    def wait(self, seconds: float | None) -> bool:
        if self._exit_status is None:
            with contextlib.suppress(TimeoutError):
                answer = self._server.read(seconds)
                self._hear(answer)
                self._server.fork_pid = None
        return self._exit_status is not None

    def end(self, directory: Path, *, grace: float) -> None:
        if not self._is_contained:
            end_everything(self, directory, grace=grace)
            return
        self._server.ask({"end": grace})
        try:
            self._wait_until_over(grace + KILLED_SECONDS)
        except TimeoutError:
            self.kill(directory)

    def kill(self, directory: Path) -> None:
        if self._is_contained:
            self._server.ask({"end": 0.0})
            self._wait_until_over(None)
        else:
            end_everything(self, directory, grace=0.0)

    def _wait_until_over(self, seconds: float | None) -> None:
        """Until the answer that comes when everything in the namespaces has ended, or the server."""
        while not self._is_over:
            self._hear(self._server.read(seconds))

    def _hear(self, answer: dict[str, Any] | None) -> None:
        """None: the server has died. An empty one is the last of a contained run, also if somebody has killed it."""
        if self._exit_status is None:
            killed = self._server.died() if answer is None else -signal.SIGKILL
            self._exit_status = answer["exit_status"] if answer else killed
        self._is_over = not answer

    def exit_status(self) -> int:
        assert self._exit_status is not None, f"{self.pid} has not ended"
        if isinstance(self._exit_status, UnsupportedError):
            raise self._exit_status
        return self._exit_status


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """None: no longer set."""
    gone = dict.fromkeys(before.keys() - after.keys())
    return gone | {name: value for name, value in after.items() if before.get(name) != value}
