"""Files that foretell writes, and files that it reads from others.

A file is written beside its target and renamed over it when complete: an interrupt or a full disk leaves the old one.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from foretell.errors import TraceError

_PROBED_BYTES = 1 << 16
_PART_BYTES = 1 << 24


def write(path: Path, content: str | bytes, *, is_private: bool = True) -> None:
    """Write the whole file, or raise a TraceError and leave the old one as it is.

    A private file is for its owner alone, because command lines and paths are in it; another one keeps its mode.
    """
    with writing(path, is_private=is_private) as file:
        # A file name that is not UTF-8 is a string with lone surrogates.
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


@contextlib.contextmanager
def writing(path: Path, *, is_private: bool = True) -> Iterator[IO[bytes]]:
    """Open for writing, as `write` does. Devices, pipes and descriptors (`/dev/stdout`) are written to directly."""
    try:
        direct = _direct(path)
        if direct is not None:
            whole = io.BytesIO()  # zipfile seeks, and /dev/null takes that without an error
            yield whole
            with direct:
                direct.write(whole.getvalue())
            return
        with _replacing(real(path), is_private=is_private) as file:
            yield file
    except OSError as error:
        raise TraceError(f"cannot write {path}: {_reason(error)}.") from None


def why_not_writable(path: Path) -> str | None:
    """What stands in the way of `write`; tried, because neither modes nor free space tell on every file system."""
    try:
        if path.is_dir():
            return "is a folder. Give a file name"
        with contextlib.suppress(FileNotFoundError):
            if _descriptor(path) is not None or not stat.S_ISREG(path.stat().st_mode):
                return None if os.access(path, os.W_OK) else "may not be written to"
        folder = real(path).parent
        if not folder.is_dir():
            return f"no such folder: {folder}"
        with tempfile.TemporaryFile(dir=folder, prefix=".foretell-") as file:
            file.write(bytes(_PROBED_BYTES))
    except OSError as error:
        return f"cannot be written: {_reason(error)}"
    return None


def real(path: Path) -> Path:
    """The path without links. Unlike `Path.resolve`, it takes links that lead to themselves."""
    return Path(os.path.realpath(path))


def _direct(path: Path) -> IO[bytes] | None:
    """The target itself, if it must not be replaced by a file."""
    descriptor = _descriptor(path)
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return os.fdopen(os.dup(descriptor), "wb")
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return None
    return None if is_file else path.open("wb")


def _descriptor(path: Path) -> int | None:
    """The number of an open file named /dev/fd/N, /proc/self/fd/N or by a link to one, such as /dev/stdout."""
    own = real(Path("/proc/self/fd"))
    path = Path(os.path.abspath(path))
    for _ in range(40):  # as many links as Linux follows
        if real(path.parent) == own and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


@contextlib.contextmanager
def _replacing(path: Path, *, is_private: bool) -> Iterator[IO[bytes]]:
    handle, temporary = tempfile.mkstemp(prefix=".foretell-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        _take_over_owner_and_mode(temporary, path, is_private=is_private)
        try:
            os.replace(temporary, path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            shutil.copyfile(temporary, path)  # a mount of its own, as containers have for single files
            os.unlink(temporary)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _take_over_owner_and_mode(temporary: str, path: Path, *, is_private: bool) -> None:
    try:
        old = path.stat()
    except FileNotFoundError:
        if not is_private:
            os.chmod(temporary, 0o666 & ~_umask())
        return
    with contextlib.suppress(PermissionError):  # only root may give a file away
        os.chown(temporary, old.st_uid, old.st_gid)
    if not is_private:
        os.chmod(temporary, stat.S_IMODE(old.st_mode))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on the disk"
    return error.strerror or str(error)


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, most_bytes: int) -> bytes:
    """The whole file. Raises an OSError, also for a device and for a file, or a pipe, that has more than that."""
    parts: list[bytes] = []
    with opened(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size  # 0 for a pipe
        while num_bytes <= most_bytes and (part := file.read(_PART_BYTES)):
            parts.append(part)
            num_bytes = max(num_bytes, sum(map(len, parts)))
    if num_bytes > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB, the largest that is read")
    return b"".join(parts)


def opened(path: Path) -> IO[bytes]:
    """Open for reading. Raises an OSError, also for a device: /dev/zero has no end."""
    if path.is_char_device() or path.is_block_device():
        raise OSError(errno.EINVAL, "a device, not a file")
    return path.open("rb")


def unpack(data: bytes, *, most_bytes: int) -> bytes:
    """What gzip has packed. Raises an OSError for more than `most_bytes`, and what gzip raises for damaged data."""
    unpacked = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most_bytes + 1)
    if len(unpacked) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB when unpacked, far too much for its size")
    return unpacked
