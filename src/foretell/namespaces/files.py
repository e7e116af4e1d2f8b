"""Files in the layers of overlays: which were changed, copies of them, and their end."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

_PIECE_BYTES = 1 << 20
UNINTERESTING = ("__pycache__", ".cache")
"""Folders whose changed files are not listed: they can be made again, and every program writes to them."""


def changed_in(layer: str, shown: str) -> Iterator[tuple[str, str, str]]:
    try:
        entries = sorted(os.scandir(layer), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path, place = f"{shown}/{entry.name}", f"{layer}/{entry.name}"
        state = entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in UNINTERESTING:
                yield from changed_in(place, path)
        elif stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
            yield path, place, "delete"
        else:
            yield path, place, "write"


def copy_tree(folder: str, target: str) -> None:
    """Copy what `copy_file` copies; a file that is in the target already is replaced."""
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(folder):
        copy = copy_tree if entry.is_dir(follow_symlinks=False) else copy_file
        copy(entry.path, os.path.join(target, entry.name))


def copy_file(path: str, target: str) -> None:
    """Copy a link, or a file with its holes, mode and times. Pipes and sockets have no content, and are left out."""
    state = os.lstat(path)
    with suppress(FileNotFoundError):
        os.unlink(target)
    if stat.S_ISLNK(state.st_mode):
        os.symlink(os.readlink(path), target)
    elif stat.S_ISREG(state.st_mode):
        _copy_content(path, target)
        os.chmod(target, stat.S_IMODE(state.st_mode))
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def _copy_content(path: str, target: str) -> None:
    """A saved model is mostly holes, which must not fill the disk."""
    with open(path, "rb") as source, open(target, "wb") as copy:
        size = os.fstat(source.fileno()).st_size
        copy.truncate(size)
        for begin, end in _pieces_of_data(source.fileno(), size):
            source.seek(begin)
            copy.seek(begin)
            while begin < end and (piece := source.read(min(_PIECE_BYTES, end - begin))):
                copy.write(piece)
                begin += len(piece)


def _pieces_of_data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # only a hole is left
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def remove_owned(folder: str, owner: str) -> None:
    """Remove a scratch folder; its file `owner` last, and only if nothing else is left, because nobody removes a folder
    without an owner."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name != owner:
                remove_tree(os.path.join(folder, name))
        if os.listdir(folder) == [owner]:
            os.unlink(os.path.join(folder, owner))
            os.rmdir(folder)


def remove_tree(path: str) -> None:
    """A file or a folder; what cannot be removed is left."""
    with suppress(OSError):
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
            return
        os.chmod(path, 0o700)  # overlayfs leaves folders without any permission
        for name in os.listdir(path):
            remove_tree(os.path.join(path, name))
        os.rmdir(path)
