"""Runs a program in namespaces of its own, so that the kernel holds what it writes, sends and starts.

Every writable file system is covered by an overlayfs whose upper layer is in the scratch folder: files are changed
there and nowhere else, whoever changes them. The network consists of loopback. The program's processes are in a PID
namespace whose first process (`_Init`) ends them all when it ends. docs/isolation.md describes it for users.

Three processes: the supervisor (this process) stays outside and removes the layers; its child is process 1 inside, and
builds the new root; the child of that one is the program. `foretell.runs` starts this file by path, and the forks of a
warm process use it as a module; standard library only, and as little of it as possible, because it costs time.
"""

import ctypes
import errno
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

TERMINATE_SECONDS = 1.0
"""How long processes that the program has left behind may take to exit before they are killed."""

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITY_VERSION_3, NUM_CAPABILITIES = 0x20080522, 64
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service, ipc_lock, sys_nice: root may do with its
# files what it always may, and nothing to the machine.
KEPT_BY_ROOT = (0, 1, 3, 4, 5, 6, 7, 10, 14, 23)
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

KERNEL_FILE_SYSTEMS = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs",
    "tracefs",
}  # fmt: skip
"""They hold no files of the user's."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
READ_ONLY_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "scsi", "acpi")
SMALL_FILE_BYTES = 256 << 10
"""Files up to this size are copied where a folder cannot be covered as a whole."""
MOST_ADOPTED = 5000
"""How many files and folders are looked at for that reason."""
UNINTERESTING = ("__pycache__", ".cache")
"""Folders whose changed files are not listed: they can be made again, and every program writes to them."""

_libc = ctypes.CDLL(None, use_errno=True)


class CannotIsolate(Exception):
    """The kernel refuses; the text says what."""


def supervise(
    spec: dict[str, Any], program: Callable[[], NoReturn], *, control: int, answers: int
) -> NoReturn:
    """Run `program` inside, and exit when everything in there has ended and the layers are removed.

    `spec`: directory (the capture folder), writable (folders that are let through), cwd and home (folders where files
    are written most often), is_online, keeps_writes, is_owned (remove the capture folder if the caller has died).
    `control` carries {"end": seconds}: terminate everything, and kill it after so long. When it is closed the caller
    has died. Answers: {"failed": why}, or {"pid": of the program, "read_only": [...], "is_in_memory": ...}, then
    {"exit_status": ...}.
    """
    layers = os.path.join(spec["directory"], "layers")
    try:
        is_locked = _enter_pid_namespace()
        os.makedirs(layers, mode=0o700, exist_ok=True)
    except (OSError, CannotIsolate) as error:
        _tell(answers, {"failed": str(error)})
        os._exit(0)
    init = os.fork()
    if init == 0:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getpid() != 1 or _has_hung_up(control):
            os._exit(1)
        try:
            _Init(spec, _Root(layers, is_locked=is_locked), control, answers).run(program)
        except BaseException as error:  # nothing of it may reach the caller of the fork
            _tell(answers, {"failed": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(1)
    os.waitpid(init, 0)
    remove_tree(layers)
    if spec["is_owned"] and _has_hung_up(control):
        remove_tree(spec["directory"])
    os._exit(0)


def _tell(answers: int, line: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody is left to be told
        os.write(answers, json.dumps(line).encode() + b"\n")


def _has_hung_up(control: int) -> bool:
    poll = select.poll()
    poll.register(control, 0)
    return bool(poll.poll(0))


# --- namespaces -------------------------------------------------------------------------------------------------------


def _enter_pid_namespace() -> bool:
    """For the children of this process. Returns whether that took a user namespace, which only root can do without:
    the mounts of today are then locked together, and an overlay cannot show what is below one of them."""
    if os.geteuid() == 0 and _libc.unshare(CLONE_NEWPID) == 0:
        return False
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWPID), "cannot create a user namespace")
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise CannotIsolate(f"cannot set up a user namespace: {error.strerror}") from None
    return True


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise CannotIsolate(f"{what}: {os.strerror(number)}")


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def _drop_capabilities() -> None:
    """What could undo the isolation; an ordinary user has none to begin with, but in its own user namespace."""
    kept = KEPT_BY_ROOT if os.geteuid() == 0 else ()
    for number in range(NUM_CAPABILITIES):
        if number not in kept:
            _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL: this kernel has fewer
    bits = sum(1 << number for number in kept)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(bits & 0xFFFFFFFF, bits & 0xFFFFFFFF, 0, bits >> 32, bits >> 32, 0)
    _check(_libc.capset(header, data), "cannot drop capabilities")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "cannot set no_new_privs")
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or its children may not look at each other in /proc (CUDA IPC)


# --- the first process ------------------------------------------------------------------------------------------------


class _Init:
    """Process 1: builds the root, starts the program, reaps, and ends everything."""

    def __init__(self, spec: dict[str, Any], root: "_Root", control: int, answers: int) -> None:
        self._spec = spec
        self._root = root
        self._control = control
        self._answers = answers

    def run(self, program: Callable[[], NoReturn]) -> NoReturn:
        try:
            outer_proc = self._build()
        except (CannotIsolate, OSError) as error:
            _tell(self._answers, {"failed": str(error)})
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
        flags = CLONE_NEWNS | CLONE_NEWIPC | (0 if self._spec["is_online"] else CLONE_NEWNET)
        _check(_libc.unshare(flags), "cannot create a mount and a network namespace")
        _mount(None, "/", None, MS_REC | MS_PRIVATE)
        if not self._spec["is_online"]:
            _bring_loopback_up()
        outer_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        directory, cwd = self._spec["directory"], self._spec["cwd"]
        used = [cwd, self._spec["home"], os.path.dirname(directory)]
        self._root.build([directory, *self._spec["writable"]], used)
        self._root.enter()
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
            _drop_capabilities()
            started = {"pid": int(outside), "read_only": self._root.read_only}
            _tell(self._answers, {**started, "is_in_memory": self._root.is_in_memory})
            os.set_inheritable(self._answers, False)
            program()
        except BaseException as error:
            _tell(self._answers, {"failed": f"{type(error).__name__}: {error}"})
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
        if stat.S_ISLNK(os.lstat(place).st_mode):
            os.symlink(os.readlink(place), target)
            return
        _copy_sparse(place, target)
    except OSError as error:
        print(f"foretell: cannot keep {target}: {error.strerror}", file=sys.stderr)


def _copy_sparse(path: str, target: str) -> None:
    """A saved model is mostly holes."""
    with open(path, "rb") as source, open(target, "wb") as copy:
        size = os.fstat(source.fileno()).st_size
        copy.truncate(size)
        at = 0
        while at < size:
            try:
                begin = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            at = os.lseek(source.fileno(), begin, os.SEEK_HOLE)
            source.seek(begin)
            copy.seek(begin)
            while begin < at:
                piece = source.read(min(1 << 20, at - begin))
                copy.write(piece)
                begin += len(piece)


# --- the root ---------------------------------------------------------------------------------------------------------


class _Mount:
    """A line of /proc/self/mountinfo."""

    def __init__(self, line: str) -> None:
        before, _, after = line.partition(" - ")
        fields = before.split()
        self.id = int(fields[0])
        self.point = _unescaped(fields[4])
        self.options = fields[5].split(",")
        self.kind = after.split()[0]

    @property
    def is_read_only(self) -> bool:
        return "ro" in self.options

    @property
    def flags(self) -> int:
        return MS_NOSUID | MS_NODEV | (MS_NOEXEC if "noexec" in self.options else 0)


def _unescaped(path: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        path = path.replace(f"\\{code}", character)
    return path


def _mounts() -> list[_Mount]:
    """In the order of their paths; without what is replaced anyway."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        mounts = [_Mount(line) for line in file]
    kept = [mount for mount in mounts if not _is_below(mount.point, ("/proc", "/sys", "/dev"))]
    return sorted(kept, key=lambda mount: mount.point)


def _is_visible(mount: _Mount) -> bool:
    """Whether its path leads to it; otherwise it is below another one, or out of reach."""
    return _mount_at(mount.point) == mount.id


def _mount_at(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(descriptor)


def _mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    given = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    if _libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3]) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind or source} on {target}: " + _last_error())


def _last_error() -> str:
    return os.strerror(ctypes.get_errno())


def _make_read_only(target: str) -> None:
    """With all that is mounted below it."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, ctypes.c_size_t(32)
    )
    _check(result, f"cannot make {target} read-only (Linux 5.12 or newer can)")


class _Root:
    """The file system the program sees."""

    def __init__(self, layers: str, *, is_locked: bool) -> None:
        self.read_only: list[str] = []
        """Writable file systems that could not be covered, and so cannot be written to."""
        self.is_in_memory = False
        """The layers are, for want of a disk that can hold them."""
        self.descriptors: list[int] = []
        self._layers = layers
        self._is_locked = is_locked
        self._uppers: list[tuple[str, int]] = []
        self._adopted: dict[str, tuple[int, int]] = {}
        """Files that are in a layer without having been changed, as they were then."""

    def build(self, writable: list[str], used: list[str]) -> None:
        """`writable` folders are let through; `used` are those where the program is most likely to write."""
        self._used = [os.path.realpath(path) for path in used]
        self._mounts = _mounts()  # before there are any of ours
        self._find_place()
        self._new = os.path.join(self._layers, "root")
        os.mkdir(self._new)
        if self._is_locked:
            self._cover_in_parts()
        else:
            for mount in self._mounts:
                if _is_visible(mount):
                    self._cover_mount(mount)
        if any(_is_below(self._used[0], (path,)) for path in self.read_only):
            raise CannotIsolate(f"overlayfs cannot cover the file system of {self._used[0]}")
        self._add_proc()
        if os.path.isdir("/sys"):
            _mount("/sys", f"{self._new}/sys", None, MS_BIND | MS_REC)
            _make_read_only(f"{self._new}/sys")
        self._add_dev()
        for path in writable:
            self._bind(os.path.realpath(path))
        # Hide the layers: their place in the root would show a loop.
        _mount("tmpfs", self._new + os.path.realpath(self._layers), "tmpfs", MS_RDONLY, "mode=755,size=4k")

    def enter(self) -> None:
        os.chdir(self._new)
        _check(_libc.pivot_root(b".", b"."), "cannot change the root")
        _check(_libc.umount2(b".", MNT_DETACH), "cannot leave the old root")
        os.chdir("/")

    def changes(self) -> Iterator[tuple[str, str, str]]:
        """Path, place in the layer, and `write` or `delete`."""
        for point, upper in self._uppers:
            for path, place, change in _changed_in(f"/proc/self/fd/{upper}", point.rstrip("/")):
                if change == "delete" or self._adopted.get(path) != _state_of(place):
                    yield path, place, change

    # The place of the layers

    def _find_place(self) -> None:
        if not self._can_hold_layers():
            _mount("tmpfs", self._layers, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
            self.is_in_memory = True
            if not self._can_hold_layers():
                raise CannotIsolate(f"overlayfs does not work here: {_last_error()}")

    def _can_hold_layers(self) -> bool:
        trial = os.path.join(self._layers, "trial")
        for name in ("", "lower", "merged"):
            os.mkdir(os.path.join(trial, name))
        try:
            self._overlay(f"{trial}/lower", f"{trial}/merged", f"{trial}/layer", 0)
        except OSError:
            return False
        finally:
            _libc.umount2(os.fsencode(f"{trial}/merged"), MNT_DETACH)
        return True

    # Files

    def _cover_mount(self, mount: _Mount) -> None:
        if mount.kind in KERNEL_FILE_SYSTEMS or not os.path.exists(self._new + mount.point):
            return
        if mount.is_read_only or not os.path.isdir(mount.point):
            self._bind(mount.point, is_read_only=True)
        else:
            self._cover(mount.point, mount.flags)

    def _cover(self, point: str, flags: int, *, lower: str | None = None) -> bool:
        """An overlay on a folder; False: that cannot be, and it is read-only."""
        layer = os.path.join(self._layers, str(len(self._uppers) + len(self.read_only)))
        try:
            self._overlay(lower or point, self._new + point, layer, flags)
        except OSError:
            self._bind(point, is_read_only=True)
            self.read_only.append(point)
            return False
        descriptor = os.open(f"{layer}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.descriptors.append(descriptor)
        self._uppers.append((point, descriptor))
        return True

    def _overlay(self, lower: str, target: str, layer: str, flags: int) -> None:
        for name in ("", "upper", "work"):
            os.mkdir(os.path.join(layer, name))
        _copy_permissions(lower, f"{layer}/upper")
        # Descriptors instead of paths: a comma or a colon in one would have to be escaped.
        paths = (lower, f"{layer}/upper", f"{layer}/work")
        opened = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in paths]
        try:
            named = ("lowerdir", "upperdir", "workdir")
            options = [f"{name}=/proc/self/fd/{number}" for name, number in zip(named, opened, strict=True)]
            options += ["volatile", "index=off", "userxattr" if self._is_locked else "redirect_dir=off,metacopy=off"]
            _mount("overlay", target, "overlay", flags, ",".join(options))
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _bind(self, path: str, *, is_read_only: bool = False) -> None:
        target = self._new + path
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        elif not os.path.lexists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            _mount(path, target, None, MS_BIND)
        except OSError:  # something is mounted below it, and locked
            _mount(path, target, None, MS_BIND | MS_REC)
        if is_read_only:
            _make_read_only(target)

    # A root in parts, for an ordinary user: a folder with something mounted below it cannot be covered as a whole.

    def _cover_in_parts(self) -> None:
        base = os.path.join(self._layers, "base")
        os.mkdir(base)
        parts: list[str] = []
        self._make_skeleton("/", base, parts)
        self._cover("/", MS_NOSUID | MS_NODEV, lower=base)
        flags = {mount.point: mount.flags for mount in self._mounts}
        read_only = {mount.point for mount in self._mounts if mount.is_read_only}
        for path in parts:
            if path in read_only or not os.path.isdir(path) or not os.access(path, os.R_OK | os.X_OK):
                self._bind(path, is_read_only=True)
            elif self._cover(path, flags.get(path, MS_NOSUID | MS_NODEV)):
                self._adopt(path)

    def _make_skeleton(self, folder: str, base: str, parts: list[str]) -> None:
        """Makes the folders above mount points in `base`, and lists in `parts` what to mount in them."""
        with os.scandir(folder) as entries:
            for entry in entries:
                path, target = os.path.join(folder, entry.name), os.path.join(base, entry.name)
                if entry.is_symlink():
                    os.symlink(os.readlink(path), target)
                elif entry.is_dir():
                    os.mkdir(target)
                    if path in ("/proc", "/sys", "/dev"):
                        continue
                    is_above = any(mount.point.startswith(f"{path}/") for mount in self._mounts)
                    if is_above and os.access(path, os.R_OK | os.X_OK):
                        self._make_skeleton(path, target, parts)
                    else:
                        parts.append(path)
                elif not _copy(path, target):
                    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
                    parts.append(path)
                    if os.access(path, os.W_OK):
                        self.read_only.append(path)
        _copy_permissions(folder, base)

    def _adopt(self, point: str) -> None:
        """Overlayfs cannot copy what belongs to other users or groups, which are unknown in a user namespace; so the
        folders on the way to those that are used, and small files in them, are copied beforehand."""
        upper = f"/proc/self/fd/{self._uppers[-1][1]}"
        for path in self._used:
            if path != point and _is_below(path, (point,)):
                for name in _ancestors(path, point):
                    if not os.path.exists(copy := upper + name[len(point.rstrip("/")) :]):
                        os.mkdir(copy)
                        _copy_permissions(name, copy)
            if _is_below(path, (point,)) and path == self._used[0]:
                self._adopt_below(path, upper + path[len(point.rstrip("/")) :])

    def _adopt_below(self, folder: str, upper: str) -> None:
        """What belongs to others among the first files and folders below `folder`."""
        waiting, num_seen = [(folder, upper)], 0
        for source, target in waiting:
            try:
                entries = list(os.scandir(source))
            except OSError:
                continue
            num_seen += len(entries)
            if num_seen > MOST_ADOPTED:
                return
            for entry in entries:
                state = entry.stat(follow_symlinks=False)
                is_ours = (state.st_uid, state.st_gid) == (os.geteuid(), os.getegid())
                copy = f"{target}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if not is_ours:
                        os.makedirs(copy, exist_ok=True)
                        _copy_permissions(entry.path, copy)
                    waiting.append((entry.path, copy))
                elif not is_ours and entry.is_file(follow_symlinks=False) and os.access(entry.path, os.W_OK):
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    if _copy(entry.path, copy):
                        self._adopted[entry.path] = _state_of(copy)

    # /proc and /dev

    def _add_proc(self) -> None:
        proc = f"{self._new}/proc"
        os.makedirs(proc, exist_ok=True)
        _mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for name in READ_ONLY_IN_PROC:
            if os.path.exists(path := f"{proc}/{name}"):
                _mount(path, path, None, MS_BIND | MS_REC)
                _make_read_only(path)

    def _add_dev(self) -> None:
        dev = f"{self._new}/dev"
        os.makedirs(dev, exist_ok=True)
        _mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755")
        for name in DEVICES:
            if os.path.exists(f"/dev/{name}"):
                self._bind(f"/dev/{name}")
        for name, target in (("fd", "/proc/self/fd"), ("ptmx", "pts/ptmx")):
            os.symlink(target, f"{dev}/{name}")
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"{dev}/{name}")
        os.mkdir(f"{dev}/shm")
        os.mkdir(f"{dev}/pts")
        self._add_shared_memory(f"{dev}/shm")
        _mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")

    def _add_shared_memory(self, target: str) -> None:
        """In memory, as it is; what others keep in it (a dataset) can be read."""
        _mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        with suppress(OSError):
            if os.listdir("/dev/shm"):
                place = os.path.join(self._layers, "shm")
                os.mkdir(place)
                _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
                self._overlay("/dev/shm", target, f"{place}/layer", MS_NOSUID | MS_NODEV)


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Also a folder itself."""
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _copy(path: str, target: str) -> bool:
    """A small regular file; False for any other."""
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode) or state.st_size > SMALL_FILE_BYTES:
            return False
        with open(path, "rb") as source, open(target, "wb") as copy:
            copy.write(source.read())
        _copy_permissions(path, target)
    except OSError:
        return False
    return True


def _ancestors(path: str, point: str) -> list[str]:
    """From the folder below `point` to `path` itself."""
    found = []
    while path != point:
        found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


def _state_of(path: str) -> tuple[int, int]:
    state = os.lstat(path)
    return state.st_mtime_ns, state.st_size


def _copy_permissions(path: str, target: str) -> None:
    """And the owner. An ordinary user cannot give a file away: it becomes the user's, but as little writable."""
    state = os.stat(path)
    mode = stat.S_IMODE(state.st_mode)
    if os.geteuid() == 0:
        with suppress(OSError):  # an owner that is unknown in a user namespace
            os.chown(target, state.st_uid, state.st_gid)
    elif not os.access(path, os.W_OK):
        mode &= ~0o222
    os.chmod(target, mode)


def _changed_in(layer: str, shown: str) -> Iterator[tuple[str, str, str]]:
    try:
        entries = sorted(os.scandir(layer), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path, place = f"{shown}/{entry.name}", f"{layer}/{entry.name}"
        state = entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in UNINTERESTING:
                yield from _changed_in(place, path)
        elif stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
            yield path, place, "delete"
        else:
            yield path, place, "write"


def remove_tree(path: str) -> None:
    """Also where overlayfs has left a folder without any permission."""
    try:
        entries = list(os.scandir(path))
    except PermissionError:
        try:
            os.chmod(path, 0o700)
            entries = list(os.scandir(path))
        except OSError:
            return
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            os.unlink(path)
        return
    for entry in entries:
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                os.unlink(entry.path)
    with suppress(OSError):
        os.rmdir(path)


# --- as a program -----------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """`namespaces.py CONTROL ANSWERS LENGTH`: two descriptors, and the number of bytes at the start of CONTROL that are
    the specification, with the argv, environment and cwd of the program."""
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


if __name__ == "__main__":
    main()
