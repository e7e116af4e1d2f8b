"""Turns the paths given to writers and readers in C++, Rust and C into the overlay's places for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from .run import Run

if TYPE_CHECKING:
    from .overlay import Files


def install(run: Run, files: Files) -> None:
    def reading(path: Any) -> Any:
        return (files.to_read(path) or path) if isinstance(path, (str, os.PathLike)) else path

    def writing(path: Any) -> Any:
        return (files.to_write(path, keep=False) or path) if isinstance(path, (str, os.PathLike)) else path

    def updating(path: Any) -> Any:
        is_file = isinstance(path, (str, os.PathLike)) and not str(path).startswith((":memory:", "file:"))
        return (files.to_write(path, keep=True) or path) if is_file else path

    def on_torch(torch: Any) -> None:
        from .checkpoints import load_lazily, save_with_holes

        torch.save = save_with_holes(torch, torch.save, writing)
        torch.load = load_lazily(torch.load, reading)
        _map_argument(torch.jit, "save", 1, "f", writing)
        _map_argument(torch.jit, "load", 0, "f", reading)

    def on_safetensors(safetensors: Any) -> None:
        from .checkpoints import serialize_with_holes

        safetensors.serialize_file = serialize_with_holes(safetensors.serialize_file, writing)
        _map_argument(safetensors, "safe_open", 0, "filename", reading)

    def on_shutil(shutil: Any) -> None:
        shutil.rmtree = files.rmtree(shutil.rmtree)

    run.imports.when_imported("torch", on_torch)
    run.imports.when_imported("safetensors", on_safetensors)
    run.imports.when_imported("shutil", on_shutil)
    run.imports.when_imported("sqlite3", lambda sqlite3: _map_argument(sqlite3, "connect", 0, "database", updating))


def _map_argument(module: Any, name: str, position: int, keyword: str, change: Callable[[Any], Any]) -> None:
    original = getattr(module, name, None)
    if original is None:
        return

    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], change(args[position]), *args[position + 1 :])
        elif keyword in kwargs:
            kwargs[keyword] = change(kwargs[keyword])
        return original(*args, **kwargs)

    setattr(module, name, function)
