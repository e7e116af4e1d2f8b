"""Files in the layers of overlays: which were changed, copies of them, and their end."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

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


def copy_sparse(path: str, target: str) -> None:
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


def remove_owned(folder: str, owner: str) -> None:
    """Remove a scratch folder; its file `owner` last, and only if nothing else is left, because whoever finds it without
    an owner takes the rest for somebody else's."""
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
