"""What CUDA's kernels do that the shape of the result does not tell: one function per operator, by subject.

Each module has `add(device)`, which puts its functions into `device.kernels` (they make the results), `device.besides`
(they take memory once the general way has made the results) or `device.functions` (they call other operators). Written
from PyTorch's sources, in the order in which the C++ function allocates, and checked against the virtual GPU
(tests/test_cpu_engine.py).
"""

from __future__ import annotations

from typing import Any

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

SUBJECTS = (
    basic,
    elementwise,
    matrices,
    foreach,
    indexing,
    normalization,
    reductions,
    attention,
    convolution,
    recurrent,
)


def add_all(device: Any) -> None:
    for subject in SUBJECTS:
        subject.add(device)
