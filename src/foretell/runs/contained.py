"""A program in namespaces of its own: the caller's side of `foretell.namespaces`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from foretell.errors import UsageError
from foretell.runs.environment import OWNER
from foretell.runs.lines import JsonLines
from foretell.runs.waiting import KILLED_SECONDS, CannotIsolate, Containment, Program

NAMESPACES = Path(__file__).parent.parent / "namespaces" / "__main__.py"


def specification(containment: Containment, program: Program) -> dict[str, Any]:
    """As `namespaces.processes.supervise` takes it."""
    return {
        "directory": str(containment.directory),
        "writable": [str(path) for path in containment.writable],
        "is_online": containment.is_online,
        "keeps_writes": containment.keeps_writes,
        "files": [(str(path), text) for path, text in containment.files],
        "owner": OWNER if containment.is_owned else None,
        "cwd": str(program.cwd),
        "home": program.environment.get("HOME", "/"),
    }


class ContainedProcess:
    """A `waiting.Child`. Everything in the namespaces ends with this process, however this process ends."""

    def __init__(self, program: Program, stdout: IO[bytes] | int | None, stderr: IO[bytes] | int | None) -> None:
        """Raises `CannotIsolate` if the kernel does not allow it."""
        assert program.containment is not None
        if sys.platform != "linux":
            raise CannotIsolate("it takes Linux")
        specified = specification(program.containment, program)
        what = {"argv": program.argv, "environment": program.environment}
        message = json.dumps({**specified, **what}).encode()
        control, self._control = os.pipe()
        answers, answering = os.pipe()
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._lines = JsonLines(answers)
        self._exit_status: int | None = None
        words = [str(NAMESPACES), str(control), str(answering), str(len(message))]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", *words], stdout=stdout, stderr=stderr, pass_fds=(control, answering),
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(control)
            os.close(answering)
        try:
            self._say(message)
            started = self._lines.read(None)
        except BaseException:  # a Ctrl-C
            self.kill()
            raise
        if started is None:
            self._close()
            code = self._process.returncode
            # A kernel that refuses kills it; the traceback of an error is above, on stderr.
            raise not_started({"bug" if code > 0 else "failed": f"the helper process died (exit code {code})"})
        if "pid" not in started:
            self._close()
            raise not_started(started)
        self.pid: int = started["pid"]
        self.read_only: tuple[str, ...] = tuple(started["read_only"])
        self.is_in_memory: bool = started["is_in_memory"]
        self._argv = program.argv

    def wait(self, seconds: float | None) -> bool:
        """For the program; what it has left behind may still run."""
        with contextlib.suppress(TimeoutError):
            while self._exit_status is None:
                self._hear(self._lines.read(seconds))
        return self._exit_status is not None

    def _hear(self, line: dict[str, Any] | None) -> None:
        if line is None:  # somebody has killed the first process of the namespace, and so all of them
            self._exit_status = -signal.SIGKILL
        elif "cannot_start" in line:
            self.kill()
            raise UsageError(f"cannot start {self._argv[0]}: {line['cannot_start']}.")
        elif "exit_status" in line:
            self._exit_status = line["exit_status"]

    def exit_status(self) -> int:
        assert self._exit_status is not None, f"{self.pid} has not ended"
        return self._exit_status

    def end(self, directory: Path, *, grace: float) -> None:
        self._say(json.dumps({"end": grace}).encode() + b"\n")
        try:
            self._wait_until_closed(grace + KILLED_SECONDS)
        except TimeoutError:
            self.kill()
        self._close()

    def kill(self, directory: Path | None = None) -> None:
        self._process.kill()  # the kernel then kills the first process inside, and that is the end of all others
        self._wait_until_closed(None)
        self._close()

    def _wait_until_closed(self, seconds: float | None) -> None:
        """Until the last process that holds the other end has ended."""
        while not self._answers.closed:
            line = self._lines.read(seconds)
            if self._exit_status is None:
                self._hear(line)
            if line is None:
                return

    def _say(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, OSError):  # told by the answers that end
            while message:
                message = message[os.write(self._control, message) :]

    def _close(self) -> None:
        if not self._answers.closed:
            os.close(self._control)
            self._answers.close()
        self._process.wait()


def not_started(answer: dict[str, Any]) -> Exception:
    """The error for an answer of `namespaces/processes.py` without a pid: the kernel refuses, or there is a bug, which
    no other isolation may hide."""
    if "bug" not in answer:
        return CannotIsolate(str(answer["failed"]))
    text = str(answer["bug"]).strip()
    error = RuntimeError(f"in the kernel's isolation: {text.splitlines()[-1]}")
    error.__cause__ = RuntimeError(text)
    return error


def remedy() -> str:
    """What to do about a kernel that refuses namespaces."""
    for name, refusing, advice in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ):
        with contextlib.suppress(OSError), open(f"/proc/sys/{name}") as file:
            if file.read().strip() == refusing:
                return f"Ask the administrator for `{advice}`."
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return "Start the container with --privileged, or --cap-add SYS_ADMIN --security-opt seccomp=unconfined."
    return "It takes Linux 5.12 or newer, with user namespaces and overlayfs."
