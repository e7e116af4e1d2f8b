"""Passes redirected paths to writers and readers in C++, Rust and C."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from ..capture import Capture

if TYPE_CHECKING:
    from .overlay import Files


def install(capture: Capture, files: Files) -> None:
    def reading(path: Any) -> str | None:
        return files.to_read(path) if isinstance(path, (str, os.PathLike)) else None

    def writing(path: Any) -> str | None:
        return files.to_write(path, keep=False) if isinstance(path, (str, os.PathLike)) else None

    def updating(path: Any) -> str | None:
        is_file = isinstance(path, (str, os.PathLike)) and not str(path).startswith((":memory:", "file:"))
        return files.to_write(path, keep=True) if is_file else None

    def on_torch(torch: Any) -> None:
        from .checkpoints import load_lazily, save_with_holes

        patches.wrap(torch, "save", lambda original: save_with_holes(torch, original, writing))
        patches.replace(torch.serialization, "save", torch.save)
        patches.wrap(torch, "load", lambda original: load_lazily(original, reading))
        patches.wrap(torch.jit, "save", _mapping_argument(1, "f", writing))
        patches.wrap(torch.jit, "load", _mapping_argument(0, "f", reading))

    def on_safetensors(safetensors: Any) -> None:
        from .checkpoints import serialize_with_holes

        patches.wrap(safetensors, "serialize_file", lambda original: serialize_with_holes(original, writing))
        patches.wrap(safetensors, "safe_open", _mapping_argument(0, "filename", reading))

    def on_sqlite(sqlite3: Any) -> None:
        patches.wrap(sqlite3, "connect", _mapping_argument(0, "database", updating))
        patches.replace(sqlite3.dbapi2, "connect", sqlite3.connect)

    patches = capture.patches
    capture.imports.when_imported("torch", on_torch)
    capture.imports.when_imported("safetensors", on_safetensors)
    capture.imports.when_imported("shutil", lambda shutil: patches.wrap(shutil, "rmtree", files.rmtree))
    capture.imports.when_imported("sqlite3", on_sqlite)


def _mapping_argument(position: int, keyword: str, place: Callable[[Any], str | None]) -> Callable[[Any], Any]:
    def wrapper(original: Any) -> Any:
        @wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            if len(args) > position:
                args = (*args[:position], place(args[position]) or args[position], *args[position + 1 :])
            elif keyword in kwargs:
                kwargs[keyword] = place(kwargs[keyword]) or kwargs[keyword]
            return original(*args, **kwargs)

        return function

    return wrapper
