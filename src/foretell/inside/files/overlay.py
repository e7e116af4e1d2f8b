"""Redirects the script's file writes to `<capture folder>/overlay`: none of the user's files is overwritten.

Python's own file functions are replaced by ones that go through `OverlayTree`; reads see both the user's files and the
script's writes. torch.save, safetensors and sqlite3 have their own I/O code: they are given the redirected path. Not
redirected: programs other than Python that the script starts, and libraries that open files in C.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper, wraps
from typing import Any

from ..capture import Capture
from ..patches import Patches
from . import native_writers
from . import real_files as real
from .overlay_tree import OverlayTree
from .protected import Protected

_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(capture: Capture) -> OverlayTree:
    reported: set[str] = set()

    def on_change(path: str, change: str) -> None:
        if path not in reported:
            reported.add(path)
            capture.journal.write("redirected_write", path=path, change=change)

    directory = os.path.abspath(capture.options.directory)
    protected = Protected(directory)
    tree = OverlayTree(f"{directory}/overlay", protected, on_change)
    files = Files(tree, protected)
    files.install(capture.patches)
    native_writers.install(capture, files)
    return tree


class Files:
    """The replacement functions. Each calls its original for paths outside the overlay."""

    def __init__(self, tree: OverlayTree, protected: Protected) -> None:
        self._tree = tree
        self._protected = protected

    def install(self, patches: Patches) -> None:
        def replacing(replacement: Callable[..., Any]) -> Callable[[Any], Any]:
            return lambda original: self._replacing(original, replacement, patches)

        opening = patches.wrap(builtins, "open", replacing(self.open_file))
        patches.replace(io, "open", opening.replacement)
        replacements: dict[str, Callable[..., Any]] = {
            "open": self.open,
            "stat": self.stat,
            "lstat": self.lstat,
            "access": self.access,
            "listdir": self.listdir,
            "scandir": self.scandir,
            "readlink": self.readlink,
            "mkdir": self.mkdir,
            "rmdir": self.rmdir,
            "remove": self.unlink,
            "unlink": self.unlink,
            "rename": self.rename,
            "replace": self.rename,
            "symlink": self.symlink,
            "link": self.link,
            "chmod": self.chmod,
            "utime": self.utime,
            "truncate": self.truncate,
            "chown": self.chown,
            "setxattr": self.setxattr,
            "listxattr": self._reading(os.listxattr),
            "getxattr": self._reading(os.getxattr),
            "statvfs": self._reading(os.statvfs),
            "chdir": self.chdir,
            "getcwd": self.getcwd,
        }
        for name, replacement in replacements.items():
            patches.wrap(os, name, replacing(replacement))
        accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
        if accessor is not None:  # Python 3.10's pathlib keeps the functions it found when it was imported
            for name in (name for name in replacements if hasattr(accessor, name)):
                patches.replace(accessor, name, io.open if name == "open" else getattr(os, name))

    @staticmethod
    def _replacing(original: Any, replacement: Callable[..., Any], patches: Patches) -> Any:
        function = _Replacement(original, replacement)
        # shutil asks these sets what a function can do.
        for abilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if original in abilities:
                abilities.add(function)
                patches.added("os.supports_* of a replaced function", partial(abilities.discard, function))
        return function

    # Path lookup

    def to_read(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str | None:
        """The redirected path; None to use the path as given. Raises if the script must not see the file."""
        if not self._tree.is_active or isinstance(path, int):
            return None
        logical = self._tree.logical(path, dir_fd, follow=follow)
        if not self._tree.is_protected(logical):
            return None
        found = self._tree.find(logical)
        if found == logical:
            # If the working folder exists only in the overlay, a relative path would miss the user's file.
            is_elsewhere = not os.path.isabs(path) and real.getcwd().startswith(self._tree.root)
            return logical if is_elsewhere else None
        if found is None:
            if not real.exists(logical):
                return None  # the operating system raises
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def to_change(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str | None:
        """The logical path if changes to it are redirected, else None."""
        if isinstance(path, int):
            return None
        logical = self._tree.logical(path, dir_fd, follow=follow)
        return logical if self._tree.is_protected(logical) else None

    def to_write(
        self, path: Any, dir_fd: int | None = None, *, keep: bool, exclusive: bool = False, create: bool = True
    ) -> str | None:
        """The path to write the file to, prepared; None to use the path as given."""
        logical = self.to_change(path, dir_fd)
        if logical is None:
            return None
        found = self._tree.find(logical) if create else self._must_exist(logical, path)
        if found is not None:
            mode = real.stat(found).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(mode):
                return None  # a pipe or a device
            if exclusive:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._tree.for_writing(logical, keep=keep, given=path)

    def _must_exist(self, logical: str, given: Any) -> str:
        found = self._tree.find(logical)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
        return found

    # Replacements

    def open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or kwargs.get("opener") is not None or len(args) > 5:
            return real.open_file(file, mode, *args, **kwargs)
        if any(letter in mode for letter in "wax+"):
            keep = "a" in mode or "r" in mode
            place = self.to_write(file, keep=keep, exclusive="x" in mode, create="r" not in mode)
        else:
            place = self.to_read(file)
        if place is None:
            return real.open_file(file, mode, *args, **kwargs)
        # With an opener the file object keeps the name the script gave.
        kwargs["opener"] = lambda _, flags: real.open(place, flags | os.O_CLOEXEC, 0o666)
        return real.open_file(file, mode, *args, **kwargs)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & _WRITING_FLAGS:
            if sys._getframe(2).f_globals.get("__name__") == "tempfile":
                self._protected.made_by_tempfile(self._tree.logical(path, dir_fd))
            keep, exclusive = not flags & os.O_TRUNC, bool(flags & os.O_EXCL)
            place = self.to_write(path, dir_fd, keep=keep, exclusive=exclusive, create=bool(flags & os.O_CREAT))
        else:
            place = self.to_read(path, dir_fd)
        if place is None:
            return real.open(path, flags, mode, dir_fd=dir_fd)
        return real.open(place, flags, mode)

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        place = self.to_read(path, dir_fd, follow=follow_symlinks)
        if place is None:
            return real.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return real.stat(place, follow_symlinks=follow_symlinks)

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def access(self, path: Any, mode: int, *, dir_fd: int | None = None, **kwargs: Any) -> bool:
        try:
            place = self.to_read(path, dir_fd)
        except FileNotFoundError:
            return False
        return real.access(path, mode, dir_fd=dir_fd, **kwargs) if place is None else real.access(place, mode)

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        place = self.to_read(path, dir_fd, follow=False)
        return real.readlink(path, dir_fd=dir_fd) if place is None else real.readlink(place)

    def listdir(self, path: Any = ".") -> list[Any]:
        logical = self._merged_folder(path)
        if logical is None:
            return real.listdir(path)
        upper_names, lower_names = self._tree.names_in(logical)
        names = sorted(upper_names | lower_names)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: Any = ".") -> Any:
        logical = self._merged_folder(path)
        if logical is None:
            return real.scandir(path)
        given = path if not isinstance(path, int) else ""
        return _MergedEntries(self._tree, logical, given)

    def _merged_folder(self, path: Any) -> str | None:
        """The logical path of a folder that is partly in the overlay."""
        if not self._tree.is_active:
            return None
        if path is None:
            path = "."
        logical = self._tree.logical(real.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path)
        logical = self._tree.without_root(logical)
        if not self._tree.is_protected(logical) or not (
            real.exists(self._tree.upper(logical)) or self._tree.hides(logical)
        ):
            return None
        if not real.is_folder(self._must_exist(logical, path)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return logical

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if sys._getframe(2).f_globals.get("__name__") == "tempfile":
            self._protected.made_by_tempfile(self._tree.logical(path, dir_fd))
        logical = self.to_change(path, dir_fd)
        if logical is None:
            real.mkdir(path, mode, dir_fd=dir_fd)
        else:
            self._tree.make_folder(logical, mode, path)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        logical = self.to_change(path, dir_fd, follow=False)
        if logical is None:
            real.rmdir(path, dir_fd=dir_fd)
            return
        if not real.is_folder(self._must_exist(logical, path)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if any(self._tree.names_in(logical)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._tree.delete(logical)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        logical = self.to_change(path, dir_fd, follow=False)
        if logical is None:
            real.unlink(path, dir_fd=dir_fd)
            return
        if real.is_folder(self._must_exist(logical, path)):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._tree.delete(logical)

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        source = self._tree.logical(src, src_dir_fd, follow=False)
        target = self._tree.logical(dst, dst_dir_fd, follow=False)
        if not self._tree.is_protected(source) and not self._tree.is_protected(target):
            real.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        elif source != target:
            self._tree.move(source, target, (src, dst))

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        logical = self.to_change(dst, dir_fd, follow=False)
        if logical is None:
            real.symlink(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        if self._tree.find(logical) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        real.symlink(os.fsdecode(src), self._tree.for_writing(logical, keep=False, given=dst))

    def link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        """Copy instead of hard-linking: a write to one name must not change the user's file under the other."""
        source = self.to_read(src, kwargs.get("src_dir_fd")) or src
        place = self.to_write(dst, kwargs.get("dst_dir_fd"), keep=False, exclusive=True)
        real.copy_file(os.fsdecode(source), place or os.fsdecode(dst))

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        self._change_in_place(path, dir_fd, lambda place: real.chmod(place, mode), real.chmod, mode)

    def utime(self, path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
        kwargs.pop("follow_symlinks", None)
        self._change_in_place(
            path, dir_fd, lambda place: real.utime(place, *args, **kwargs), real.utime, *args, **kwargs
        )

    def truncate(self, path: Any, length: int) -> None:
        self._change_in_place(path, None, lambda place: real.truncate(place, length), real.truncate, length)

    def _change_in_place(
        self, path: Any, dir_fd: int | None, change: Callable[[str], None], original: Any, *args: Any, **kwargs: Any
    ) -> None:
        logical = self.to_change(path, dir_fd)
        if logical is None:
            if dir_fd is not None:
                kwargs["dir_fd"] = dir_fd
            original(path, *args, **kwargs)
            return
        found = self._must_exist(logical, path)
        if real.is_folder(found) and found == logical:
            return  # do not touch times and permissions of the user's folders
        change(self._tree.for_writing(logical, keep=True, given=path))

    def chown(self, path: Any, uid: int, gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        """Do nothing for files in the overlay: they stay ours."""
        if self.to_change(path, dir_fd) is None:
            real.chown(path, uid, gid, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def setxattr(self, path: Any, *args: Any, **kwargs: Any) -> None:
        self._change_in_place(path, None, lambda place: real.setxattr(place, *args), real.setxattr, *args, **kwargs)

    def _reading(self, original: Any) -> Callable[..., Any]:
        def function(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self.to_read(path) or path, *args, **kwargs)

        return function

    def chdir(self, path: Any) -> None:
        if isinstance(path, int) or not self._tree.is_active:
            real.chdir(path)
            return
        logical = self._tree.logical(path)
        # Enter the user's folder if it exists: relative paths opened in C then still find the user's files.
        is_below = real.is_folder(logical) and not self._tree.hides(logical)
        real.chdir(logical if is_below else self.to_read(path) or path)

    def getcwd(self) -> str:
        return self._tree.without_root(real.getcwd())

    def rmtree(self, original: Any) -> Any:
        @wraps(original)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            logical = None if kwargs.get("dir_fd") is not None else self.to_change(path, follow=False)
            if logical is None or not self._tree.is_folder(logical):
                return original(path, *args, **kwargs)
            self._tree.delete(logical)
            return None

        return rmtree


class _Replacement:
    """Callable that, like a built-in and unlike a Python function, can be a class attribute without becoming a method:
    pathlib of Python 3.10 and many scripts store `open` and `stat` that way."""

    def __init__(self, original: Any, replacement: Callable[..., Any]) -> None:
        update_wrapper(self, original)
        self._replacement = replacement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._replacement(*args, **kwargs)


class _MergedEntries:
    """Result of os.scandir: an iterator that is also a context manager."""

    def __init__(self, tree: OverlayTree, logical: str, given: Any) -> None:
        upper_names, lower_names = tree.names_in(logical)
        folder = os.fsdecode(given)
        self._entries: Iterator[_Entry] = iter(
            [_Entry(name, folder, tree.upper(logical)) for name in sorted(upper_names)]
            + [_Entry(name, folder, logical) for name in sorted(lower_names)]
        )

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _MergedEntries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Entry:
    """An os.DirEntry for a file whose content is not at its path."""

    def __init__(self, name: str, folder: str, place: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)
        self._place = f"{place}/{name}"

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks else real.lstat(self._place)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False
