"""Which of NVIDIA's libraries a job would have called on a card, and how: they take memory of their own there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foretell.cpu.analysis import PRODUCTS, Job
from foretell.cpu.profile import Operator
from foretell.overhead.workspaces import Direction, ruled_workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    function: str
    workspace_bytes: int = 0
    x_bytes: int = 0
    y_bytes: int = 0
    w_bytes: int = 0


def library_calls(job: Job, compute_capability: tuple[int, int]) -> tuple[LibraryCall, ...]:
    """One for each kind of product and normalization, and every convolution."""
    called: dict[str, None] = {}
    convolutions: list[LibraryCall] = []
    for operator in job.operators:
        if operator.name in PRODUCTS - {"aten::convolution"}:
            called["cublasGemmEx"] = None
        elif operator.name == "aten::native_batch_norm":
            called["cudnnBatchNormalizationForwardTrainingEx"] = None
        else:
            convolutions += convolution_calls(operator, compute_capability)
    return (*(LibraryCall(function=name) for name in called), *convolutions)


def convolution_calls(operator: Operator, compute_capability: tuple[int, int]) -> Iterator[LibraryCall]:
    """One of a forward operator, one for each gradient that is wanted of a backward one."""
    directions: tuple[Direction, ...]
    if operator.name == "aten::convolution" and len(operator.tensors) > 1:
        x, w = operator.tensors[:2]
        y_shape = _output_shape(operator, x.shape, w.shape)
        directions = ("forward",)
    elif operator.name == "aten::convolution_backward" and len(operator.tensors) > 2:
        y, x, w = operator.tensors[:3]
        y_shape = y.shape
        is_wanted = re.findall(r"True|False", operator.values[-1]) if operator.values else []
        mask = is_wanted or ["True", "True"]
        wanted: tuple[Direction, Direction] = ("data", "weights")
        directions = tuple(each for each, flag in zip(wanted, mask, strict=False) if flag == "True")
    else:
        return
    for direction in directions:
        workspace = ruled_workspace(compute_capability, direction, x.shape, y_shape, w.shape, x.element_bytes)
        y_bytes = x.element_bytes
        for size in y_shape:
            y_bytes *= size
        yield LibraryCall(
            function="cudnnBackendExecute",
            workspace_bytes=workspace,
            x_bytes=x.num_bytes,
            y_bytes=y_bytes,
            w_bytes=w.num_bytes,
        )


def _output_shape(operator: Operator, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, ...]:
    """From stride, padding and dilation, where they were recorded; else as large as the input."""
    if len(operator.values) < 8 or operator.values[6] == "True":
        return (x[0], w[0], *x[2:])
    stride, padding, dilation = (
        [int(number) for number in re.findall(r"-?\d+", operator.values[at])] for at in (3, 4, 5)
    )
    spatial = len(x) - 2
    stride, padding, dilation = (each * spatial if len(each) == 1 else each for each in (stride, padding, dilation))
    sizes = zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    return (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes))
