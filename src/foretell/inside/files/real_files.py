"""The operating system's own file functions, bound before the overlay replaces them in `os`, `io` and `builtins`."""

from __future__ import annotations

import builtins
import os
from contextlib import suppress

open_file = builtins.open
open = os.open
close = os.close
read = os.read
write = os.write
stat = os.stat
lstat = os.lstat
access = os.access
listdir = os.listdir
scandir = os.scandir
readlink = os.readlink
mkdir = os.mkdir
rmdir = os.rmdir
unlink = os.unlink
rename = os.rename
symlink = os.symlink
chmod = os.chmod
utime = os.utime
truncate = os.truncate
chown = os.chown
setxattr = os.setxattr
chdir = os.chdir
getcwd = os.getcwd


def exists(path: str) -> bool:
    try:
        lstat(path)
    except OSError:
        return False
    return True


def is_folder(path: str) -> bool:
    try:
        return (lstat(path).st_mode & 0o170000) == 0o040000
    except OSError:
        return False


def copy_file(source: str, target: str) -> None:
    """Copy content and permissions."""
    mode = stat(source).st_mode & 0o7777
    reading = open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while data := read(reading, 1 << 20):
                view = memoryview(data)
                while view:
                    view = view[write(writing, view) :]
        finally:
            close(writing)
    finally:
        close(reading)
    chmod(target, mode | 0o600)


def make_folders(path: str) -> None:
    if not is_folder(path):
        make_folders(os.path.dirname(path))
        with suppress(FileExistsError):  # another process of the run made it first
            mkdir(path)


def remove_tree(path: str) -> None:
    if not exists(path):
        return
    if not is_folder(path):
        unlink(path)
        return
    for name in listdir(path):
        remove_tree(f"{path}/{name}")
    rmdir(path)
