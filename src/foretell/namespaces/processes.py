"""The processes of a program in namespaces of its own, and how they end.

Three: the supervisor (this process) stays outside and removes the layers; its child is process 1 inside, and builds the
new root; the child of that one is the program.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

from .files import copy_file, remove_owned, remove_tree
from .kernel import (
    CannotIsolate,
    die_with_parent,
    drop_capabilities,
    enter_other_namespaces,
    enter_pid_namespace,
)
from .root import Root

TERMINATE_SECONDS = 1.0
"""How long processes that the program has left behind may take to exit before they are killed."""


def supervise(spec: dict[str, Any], program: Callable[[], NoReturn], *, control: int, answers: int) -> NoReturn:
    """Run `program` inside, and exit when everything in there has ended and the layers are removed.

    `spec`: directory (the capture folder), writable (folders that are let through), cwd and home (folders where files
    are written most often), files (pairs of a path and its text), is_online, keeps_writes, owner (a file in the capture
    folder, which is removed with it if the caller has died; None: the folder stays). `control` carries {"end":
    seconds}: terminate everything, and kill it after so long. When it is closed the caller has died. Answers:
    {"failed": what the kernel refuses}, {"bug": a traceback of this code}, or {"pid": of the program, "read_only":
    [...], "is_in_memory": ...}, then {"exit_status": ...}.
    """
    layers = os.path.join(spec["directory"], "layers")
    try:
        is_locked = enter_pid_namespace()
        os.makedirs(layers, mode=0o700, exist_ok=True)
        init = os.fork()
    except (OSError, CannotIsolate) as error:
        _tell_error(answers, error)
        os._exit(0)
    if init == 0:
        die_with_parent()
        if os.getpid() != 1 or _has_hung_up(control):
            os._exit(1)
        try:
            _Init(spec, Root(layers, is_locked=is_locked), control, answers).run(program)
        except BaseException as error:  # nothing of it may reach the caller of the fork
            _tell_error(answers, error)
        finally:
            os._exit(1)
    os.waitpid(init, 0)
    remove_tree(layers)
    if spec["owner"] and _has_hung_up(control):
        remove_owned(spec["directory"], spec["owner"])
    os._exit(0)


def _tell(answers: int, line: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody is left to be told
        os.write(answers, json.dumps(line).encode() + b"\n")


def _tell_error(answers: int, error: BaseException) -> None:
    if isinstance(error, (CannotIsolate, OSError)):
        _tell(answers, {"failed": str(error)})
        return
    import traceback

    _tell(answers, {"bug": "".join(traceback.format_exception(type(error), error, error.__traceback__))})


def _has_hung_up(control: int) -> bool:
    poll = select.poll()
    poll.register(control, 0)
    return bool(poll.poll(0))


# --- the first process ------------------------------------------------------------------------------------------------


class _Init:
    """Process 1: builds the root, starts the program, reaps, and ends everything."""

    def __init__(self, spec: dict[str, Any], root: Root, control: int, answers: int) -> None:
        self._spec = spec
        self._root = root
        self._control = control
        self._answers = answers

    def run(self, program: Callable[[], NoReturn]) -> NoReturn:
        try:
            outer_proc = self._build()
        except (CannotIsolate, OSError) as error:
            _tell_error(self._answers, error)
            os._exit(0)
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        child = self._start(program, outer_proc, (woken, waker))
        os.close(outer_proc)
        self._see_to_its_end(child, woken)
        self._note_writes()
        os._exit(0)

    def _build(self) -> int:
        """Returns a descriptor of the outer /proc, which knows the numbers that processes have outside."""
        enter_other_namespaces(is_online=self._spec["is_online"])
        outer_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        directory, cwd = self._spec["directory"], self._spec["cwd"]
        used = [cwd, self._spec["home"], os.path.dirname(directory)]
        self._root.build([directory, *self._spec["writable"]], used)
        self._root.enter()
        self._root.write(self._spec["files"])
        return outer_proc

    def _start(self, program: Callable[[], NoReturn], outer_proc: int, pipe: tuple[int, int]) -> int:
        child = os.fork()
        if child:
            return child
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            outside = os.readlink("self", dir_fd=outer_proc)
            for descriptor in (outer_proc, *pipe, *self._root.descriptors, self._control):
                os.close(descriptor)
            os.setsid()
            drop_capabilities()
            started = {"pid": int(outside), "read_only": self._root.read_only}
            _tell(self._answers, {**started, "is_in_memory": self._root.is_in_memory})
            os.set_inheritable(self._answers, False)
            program()
        except BaseException as error:
            _tell_error(self._answers, error)
        finally:
            os._exit(1)

    # Waiting

    def _see_to_its_end(self, child: int, woken: int) -> None:
        """Wait until all processes have ended. When the program ends, or on request, the others are terminated."""
        unread, deadline = b"", None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for pid, status in _reaped():
                if pid == child:
                    _tell(self._answers, {"exit_status": os.waitstatus_to_exitcode(status)})
                    if deadline is None:
                        deadline = self._terminate(TERMINATE_SECONDS)
            if not _has_children():
                return
            if deadline is not None and time.monotonic() >= deadline:
                _kill_all(signal.SIGKILL)
                deadline = time.monotonic() + TERMINATE_SECONDS
            pause = None if deadline is None else max(1.0, (deadline - time.monotonic()) * 1000)
            for descriptor, _ in poll.poll(pause):
                if descriptor == woken:
                    os.read(woken, 1 << 16)
                    continue
                piece = os.read(self._control, 1 << 16)
                if not piece:  # the caller has died
                    poll.unregister(self._control)
                    _kill_all(signal.SIGKILL)
                    continue
                unread += piece
                while b"\n" in unread:
                    line, _, unread = unread.partition(b"\n")
                    seconds = float(json.loads(line)["end"])
                    if seconds == 0:
                        _kill_all(signal.SIGKILL)
                    elif deadline is None:
                        deadline = self._terminate(seconds)

    @staticmethod
    def _terminate(seconds: float) -> float:
        _kill_all(signal.SIGTERM)
        return time.monotonic() + seconds

    # What was written

    def _note_writes(self) -> None:
        """Lists the changed files as lines of a journal, and keeps them if they are wanted."""
        with open(os.path.join(self._spec["directory"], "writes.jsonl"), "w") as file:
            for path, place, change in self._root.changes():
                now = time.time_ns() // 1000
                line = {"kind": "redirected_write", "time_us": now, "path": path, "change": change}
                file.write(json.dumps(line) + "\n")
                if self._spec["keeps_writes"] and change == "write":
                    _keep(place, os.path.join(self._spec["directory"], "overlay") + path)


def _reaped() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WNOHANG | os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill_all(number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(-1, number)  # all of the namespace but this one


def _keep(place: str, target: str) -> None:
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        copy_file(place, target)
    except OSError as error:
        print(f"foretell: cannot keep {target}: {error.strerror}", file=sys.stderr)


# --- as a program -----------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """The arguments: two descriptors, and the number of bytes at the start of the first that are the specification,
    with the argv, environment and cwd of the program."""
    control, answers, length = map(int, sys.argv[1:])
    spec = json.loads(_read(control, length))

    def program() -> NoReturn:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program inherits that
            signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(spec["cwd"])
            os.execve(spec["argv"][0], spec["argv"], spec["environment"])
        except OSError as error:
            _tell(answers, {"cannot_start": error.strerror})
            os._exit(127)

    supervise(spec, program, control=control, answers=answers)


def _read(descriptor: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(descriptor, length - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data
