"""torch.save, torch.load and safetensors' serialize_file, with sparse files that are not read whole.

Imported only after torch or safetensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from . import real_files as real
from .sparse_files import SparseFile, save_safetensors

WORTH_MAPPING = 64 << 20
"""foretell's own checkpoints from this size on are memory-mapped when loaded, so that their holes take no memory."""


def save_with_holes(torch: Any, original: Any, writing: Callable[[Any], Any]) -> Any:
    @wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        place = writing(f)
        if place is f or not kwargs.get("_use_new_zipfile_serialization", True):
            return original(obj, place, *args, **kwargs)
        checks = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)  # or torch reads all bytes of the holes
        try:
            with SparseFile(place) as file:
                return original(obj, file, *args, **kwargs)
        finally:
            torch.serialization.set_crc32_options(checks)

    return save


def load_lazily(original: Any, reading: Callable[[Any], Any]) -> Any:
    @wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        place = reading(f)
        if place is not f and real.stat(place).st_size >= WORTH_MAPPING and kwargs.get("mmap") is None:
            try:
                return original(place, *args, **{**kwargs, "mmap": True})
            except (RuntimeError, ValueError):  # torch's old format, or arguments that rule out mapping
                pass
        return original(place, *args, **kwargs)

    return load


def serialize_with_holes(original: Any, writing: Callable[[Any], Any]) -> Any:
    @wraps(original)
    def serialize_file(tensor_dict: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        place = writing(filename)
        metadata = kwargs.get("metadata", args[0] if args else None)
        if place is not filename and save_safetensors(tensor_dict, place, metadata):
            return None
        return original(tensor_dict, place, *args, **kwargs)

    return serialize_file
