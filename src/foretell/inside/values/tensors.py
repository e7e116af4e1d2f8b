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


def storage_address(tensor: Any) -> int:
    """Not by `untyped_storage()`: autograd considers a storage that Python has seen shared, and stops adding gradients
    in place."""
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list) and type(value) is not torch.Size:
            yield from tensors_in(value)
