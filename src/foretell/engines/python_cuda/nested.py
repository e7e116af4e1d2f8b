"""Arguments and results of operators: tensors, lists of tensors, and other things."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def tensors_in(value: Any, tensor_class: Any) -> Iterator[Any]:
    """All tensors, also inside lists and tuples, in order."""
    if isinstance(value, tensor_class):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each, tensor_class)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with each part changed that is not a list or a tuple."""
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(each, change) for each in value)
    return change(value)
