"""Temporary folders that do not outlive their owner: those of a killed process are removed by the next one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from foretell.errors import UnsupportedError
from foretell.namespaces.files import remove_owned
from foretell.runs.environment import OWNER

_PREFIX = "foretell-"


@contextlib.contextmanager
def scratch_folder(kind: str = "") -> Iterator[Path]:
    """A new private folder; what cannot be removed of it is ignored."""
    try:
        _sweep(Path(tempfile.gettempdir()))
        path = Path(tempfile.mkdtemp(prefix=_PREFIX + kind))
        owner = _owned(path)
    except OSError as error:
        raise UnsupportedError(
            f"cannot create a scratch folder: {error.strerror}. Set TMPDIR to a folder with free space."
        ) from None
    try:
        yield path
    finally:
        remove_owned(str(path), OWNER)
        os.close(owner)


def _owned(path: Path) -> int:
    """A lock that the kernel releases when this process ends, in whatever way."""
    owner = os.open(path / f"{OWNER}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _lock(owner)
    os.rename(path / f"{OWNER}.new", path / OWNER)  # never there without its lock
    return owner


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Remove what killed processes of this user have left."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    if path.stat().st_uid != os.getuid():
        return
    owner = os.open(path / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _lock(owner):
            remove_owned(str(path), OWNER)
    finally:
        os.close(owner)
