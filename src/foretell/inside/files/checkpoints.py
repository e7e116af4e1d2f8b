"""torch.save, torch.load and safetensors' serialize_file, with sparse files that are not read whole.

Each is given a function that says where a file is, or None for what is not a file of the script's. Imported only after
torch or safetensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from . import real_files as real
from .sparse_files import SparseFile, save_safetensors

WORTH_MAPPING = 64 << 20
"""Checkpoints from this size on are memory-mapped when loaded if they consist of holes, which then take no memory."""
Place = Callable[[Any], "str | None"]


def save_with_holes(torch: Any, original: Any, writing: Place) -> Any:
    @wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        place = writing(f)
        if place is None or not kwargs.get("_use_new_zipfile_serialization", True):
            return original(obj, place or f, *args, **kwargs)
        checks = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)  # or torch reads all bytes of the holes
        try:
            with SparseFile(place) as file:
                return original(obj, file, *args, **kwargs)
        finally:
            torch.serialization.set_crc32_options(checks)

    return save


def load_lazily(original: Any, reading: Place) -> Any:
    @wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        place = reading(f)
        if place is not None and kwargs.get("mmap") is None and _is_worth_mapping(place):
            try:
                return original(place, *args, **{**kwargs, "mmap": True})
            except (RuntimeError, ValueError):  # torch's old format, or arguments that rule out mapping
                pass
        return original(place or f, *args, **kwargs)

    return load


def _is_worth_mapping(path: str) -> bool:
    try:
        state = real.stat(path)
    except OSError:
        return False
    return state.st_size >= WORTH_MAPPING and state.st_blocks * 512 < state.st_size // 2


def serialize_with_holes(original: Any, writing: Place) -> Any:
    @wraps(original)
    def serialize_file(tensor_dict: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        place = writing(filename)
        metadata = kwargs.get("metadata", args[0] if args else None)
        if place is not None and save_safetensors(tensor_dict, place, metadata):
            return None
        return original(tensor_dict, place or filename, *args, **kwargs)

    return serialize_file
