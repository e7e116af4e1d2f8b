"""Selects tensors small enough to be repeated on the host, and finds tensors among arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .operators import INTEGERS, torch

MAX_INTEGERS = 1 << 22
"""Most elements of an integer or boolean result that is repeated on the host."""
MAX_FLOATS = 1 << 16
"""The same for floating-point results: masks, positions, boxes."""

Tensor: Any = torch.Tensor
no_subclasses: Any = torch._C.DisableTorchFunctionSubclass
"""Makes our own calls of torch inside the mode go straight to the operator."""


def is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def is_small(tensor: Any) -> bool:
    return bool(tensor.numel() <= (MAX_INTEGERS if tensor.dtype in INTEGERS else MAX_FLOATS))


_INNER = {"DTensor": "_local_tensor", "AsyncCollectiveTensor": "elem"}
"""Wrappers without memory that behave, with one process, as the tensor they hold. Of others nothing is known."""


def unwrap(tensor: Any) -> Any:
    kind = type(tensor)
    while kind is not Tensor and kind.__name__ in _INNER:
        tensor = getattr(tensor, _INNER[kind.__name__])
        kind = type(tensor)
    return tensor


def has_memory(tensor: Any) -> bool:
    if type(tensor) is Tensor:
        return True
    try:
        with no_subclasses():
            return bool(tensor.data_ptr())
    except Exception:  # newer versions of torch refuse
        return False


def storage_address(tensor: Any) -> int:
    """Not by `untyped_storage()`: autograd considers a storage that Python has seen shared, and stops adding gradients
    in place."""
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, Tensor):
            yield unwrap(value)
        elif isinstance(value, tuple | list) and type(value) is not torch.Size:
            yield from tensors_in(value)
