"""The file system the program sees: overlays on all that can be written to, and a /proc, /sys and /dev of its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from .files import changed_in
from .kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    CannotIsolate,
    change_root,
    make_read_only,
    mount,
    unmount,
)

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


class Root:
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
        """Files that are in a layer without the program having changed them, as they were then."""

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
            for each in filter(_is_visible, self._mounts):
                self._cover_mount(each)
        if any(_is_below(self._used[0], (path,)) for path in self.read_only):
            raise CannotIsolate(f"overlayfs cannot cover the file system of {self._used[0]}")
        self._add_proc()
        if os.path.isdir("/sys"):
            mount("/sys", f"{self._new}/sys", None, MS_BIND | MS_REC)
            make_read_only(f"{self._new}/sys")
        self._add_dev()
        for path in writable:
            self._bind(os.path.realpath(path))
        # Hide the layers: their place in the root would show a loop.
        mount("tmpfs", self._new + os.path.realpath(self._layers), "tmpfs", MS_RDONLY, "mode=755,size=4k")

    def enter(self) -> None:
        change_root(self._new)

    def write(self, files: list[tuple[str, str]]) -> None:
        """In the new root: what the program shall find there. They do not count as its changes."""
        for path, text in files:
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            self._adopted[path] = _state_of(path)

    def changes(self) -> Iterator[tuple[str, str, str]]:
        """Path, place in the layer, and `write` or `delete`."""
        for point, upper in self._uppers:
            for path, place, change in changed_in(f"/proc/self/fd/{upper}", point.rstrip("/")):
                if change == "delete" or self._adopted.get(path) != _state_of(place):
                    yield path, place, change

    # The place of the layers

    def _find_place(self) -> None:
        try:
            self._try_overlay()
        except OSError:
            mount("tmpfs", self._layers, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
            self.is_in_memory = True
            self._try_overlay()

    def _try_overlay(self) -> None:
        trial = os.path.join(self._layers, "trial")
        for name in ("", "lower", "merged"):
            os.mkdir(os.path.join(trial, name))
        self._overlay(f"{trial}/lower", f"{trial}/merged", f"{trial}/layer", 0)
        unmount(f"{trial}/merged")

    # Files

    def _cover_mount(self, mounted: _Mount) -> None:
        if mounted.kind in KERNEL_FILE_SYSTEMS or not os.path.exists(self._new + mounted.point):
            return
        if mounted.is_read_only or not os.path.isdir(mounted.point):
            self._bind(mounted.point, is_read_only=True)
        else:
            self._cover(mounted.point, mounted.flags)

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
            mount("overlay", target, "overlay", flags, ",".join(options))
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
            mount(path, target, None, MS_BIND)
        except OSError:  # something is mounted below it, and locked
            mount(path, target, None, MS_BIND | MS_REC)
        if is_read_only:
            make_read_only(target)

    # A root in parts, for an ordinary user: a folder with something mounted below it cannot be covered as a whole.

    def _cover_in_parts(self) -> None:
        base = os.path.join(self._layers, "base")
        os.mkdir(base)
        parts: list[str] = []
        self._make_skeleton("/", base, parts)
        self._cover("/", MS_NOSUID | MS_NODEV, lower=base)
        flags = {each.point: each.flags for each in self._mounts}
        read_only = {each.point for each in self._mounts if each.is_read_only}
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
                    is_above = any(each.point.startswith(f"{path}/") for each in self._mounts)
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
        mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for name in READ_ONLY_IN_PROC:
            if os.path.exists(path := f"{proc}/{name}"):
                mount(path, path, None, MS_BIND | MS_REC)
                make_read_only(path)

    def _add_dev(self) -> None:
        dev = f"{self._new}/dev"
        os.makedirs(dev, exist_ok=True)
        mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755")
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
        mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")

    def _add_shared_memory(self, target: str) -> None:
        """In memory, as it is; what others keep in it (a dataset) can be read."""
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        with suppress(OSError):
            if os.listdir("/dev/shm"):
                place = os.path.join(self._layers, "shm")
                os.mkdir(place)
                mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
                self._overlay("/dev/shm", target, f"{place}/layer", MS_NOSUID | MS_NODEV)


# --- what is mounted already ------------------------------------------------------------------------------------------


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
    kept = [each for each in mounts if not _is_below(each.point, ("/proc", "/sys", "/dev"))]
    return sorted(kept, key=lambda each: each.point)


def _is_visible(mounted: _Mount) -> bool:
    """Whether its path leads to it; otherwise it is below another one, or out of reach."""
    return _mount_at(mounted.point) == mounted.id


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


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Also a folder itself."""
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


# --- copies -----------------------------------------------------------------------------------------------------------


def _ancestors(path: str, point: str) -> list[str]:
    """From the folder below `point` to `path` itself."""
    found = []
    while path != point:
        found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


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


def _state_of(path: str) -> tuple[int, int]:
    state = os.lstat(path)
    return state.st_mtime_ns, state.st_size
