"""What is left to do about files where the kernel protects them (`foretell.namespaces`).

Saved models become sparse files: on a virtual GPU they are mostly nothing, and must not fill the disk. And a folder can
be renamed: overlayfs refuses that for one of the user's own (EXDEV), where the file system below it would not.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from ..capture import Capture


def install(capture: Capture) -> None:
    patches = capture.patches
    accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)  # of Python 3.10
    for name in ("rename", "replace"):
        patch = patches.wrap(os, name, _renaming_folders)
        if accessor is not None:
            patches.replace(accessor, name, patch.replacement)

    def on_torch(torch: Any) -> None:
        from .checkpoints import load_lazily, save_with_holes

        patches.wrap(torch, "save", lambda original: save_with_holes(torch, original, _path_of))
        patches.replace(torch.serialization, "save", torch.save)
        patches.wrap(torch, "load", lambda original: load_lazily(original, _path_of))

    def on_safetensors(safetensors: Any) -> None:
        from .checkpoints import serialize_with_holes

        patches.wrap(safetensors, "serialize_file", lambda original: serialize_with_holes(original, _path_of))

    capture.imports.when_imported("torch", on_torch)
    capture.imports.when_imported("safetensors", on_safetensors)


def _path_of(file: Any) -> str | None:
    return os.fsdecode(file) if isinstance(file, (str, os.PathLike)) else None


def _renaming_folders(original: Callable[..., None]) -> Callable[..., None]:
    # A partial, which unlike a function can be a class attribute: pathlib of Python 3.10 keeps it as one.
    return update_wrapper(partial(_rename, original), original)


def _rename(
    original: Callable[..., None], src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
) -> None:
    try:
        original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    except OSError as error:
        is_ours = error.errno == errno.EXDEV and src_dir_fd is None and dst_dir_fd is None
        if not is_ours or not os.path.isdir(src) or os.path.islink(src):
            raise
        _move(src, dst, original)


def _move(src: Any, dst: Any, original: Callable[..., None]) -> None:
    """A copy under another name first, so that the target appears at once, as by a rename."""
    import shutil

    copy = os.fsdecode(dst).rstrip("/") + ".foretell-moving"
    shutil.copytree(src, copy, symlinks=True)
    original(copy, dst)
    shutil.rmtree(src)
