"""Reads the variables of a frame without changing how long their values live."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def variables_of(frame: FrameType) -> Iterator[Mapping[str, Any]]:
    variables = frame.f_locals
    try:
        yield variables
    finally:
        # Before Python 3.13 those of a function are a copy kept by the frame, which would keep tensors alive that the
        # function releases. A class body and an exec have the dict itself.
        if isinstance(variables, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            variables.clear()
