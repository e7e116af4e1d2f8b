"""Behaviour of CUDA's kernels beyond the shape of the result: one function per operator, by subject.

Written from PyTorch's sources, in the order in which the C++ function allocates, and checked against the virtual GPU
(tests/test_operators.py). registration.py says how an operator is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    attention,
    basic,
    convolution,
    elementwise,
    foreach,
    indexing,
    matrices,
    normalization,
    recurrent,
    reductions,
)
from .registration import register

if TYPE_CHECKING:
    from ..device import PythonCuda

SUBJECTS = (
    basic,
    elementwise,
    matrices,
    indexing,
    normalization,
    reductions,
    attention,
    convolution,
    recurrent,
)


def register_all(device: PythonCuda) -> None:
    for subject in SUBJECTS:
        register(device, subject)
    foreach.register_lists(device)
