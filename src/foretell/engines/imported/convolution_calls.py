"""Convolutions: the cuDNN calls a card makes for those the CPU computed, and their workspaces."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from foretell.engines.imported.analysis import JobBlock, RecordedJob
from foretell.engines.imported.card import Card
from foretell.engines.imported.cpu_profile import Operator, Tensor
from foretell.engines.imported.moments import AtEnd, Moment, before
from foretell.rules.convolution import (
    Convolution,
    Direction,
    convolved,
    is_by_cudnn,
    is_channels_last,
    spread,
)
from foretell.rules.convolution_workspaces import workspace_by_rule
from foretell.rules.kernels import reduction_buffer

FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"
_VALUES_AT = {FORWARD: 3, BACKWARD: 4}
"""Position of the first non-tensor argument: stride, padding, dilation, transposed, output padding, groups."""
_NUM_VALUES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCalls:
    """The convolutions of one operator, computed by cuDNN or by PyTorch's own kernels."""

    calls: tuple[Convolution, ...]
    """One per direction, in order of computation."""
    is_by_cudnn: bool


def workspaces(job: RecordedJob, card: Card) -> Iterator[JobBlock]:
    """Each workspace is allocated after the result it serves and before the next one. Then comes the bias: a sum, with
    a reduction buffer like any other."""
    births = [block.born for block in job.blocks]
    for number, operator in enumerate(job.operators):
        found = convolutions_of(operator, card)
        if found is None:
            continue
        inside = job.blocks[bisect_right(births, operator.begin) : bisect_right(births, operator.end)]
        results = [block for block in inside if block.died > operator.end]
        for at, convolution in enumerate(found.calls if found.is_by_cudnn else ()):
            is_last = at + 1 == min(len(found.calls), len(results))
            end = operator.end if is_last or not results else results[at + 1].born
            num_bytes = workspace(convolution, card)
            if num_bytes:
                yield _block(num_bytes, end, (AtEnd.TAKEN, AtEnd.WORKSPACE_GIVEN_BACK), number, is_optional=True)
        for at, num_bytes in enumerate(_bias_buffers(operator, card)):
            yield _block(num_bytes, operator.end, (AtEnd.SUM_TAKEN, AtEnd.SUM_GIVEN_BACK), number, at)


def workspace(convolution: Convolution, card: Card) -> int:
    return workspace_by_rule(convolution, card.gpu.compute_capability, card.torch)


def _block(
    num_bytes: int, end: Moment, orders: tuple[AtEnd, AtEnd], operator: int, at: int = 0, *, is_optional: bool = False
) -> JobBlock:
    taken, given_back = orders
    return JobBlock(
        num_bytes=num_bytes,
        born=before(end, taken, at),
        died=before(end, given_back, at),
        operator=operator,
        category="workspace",
        is_optional=is_optional,
    )


def _bias_buffers(operator: Operator, card: Card) -> tuple[int, ...]:
    if operator.name != BACKWARD or not operator.tensors or not operator.values[-1].endswith("True]"):
        return ()
    gradient = operator.tensors[0]
    strides = gradient.strides or tuple(prod(gradient.shape[at + 1 :]) for at in range(len(gradient.shape)))
    dims = [0, *range(2, len(gradient.shape))]
    gpu = card.gpu
    return reduction_buffer(gradient.shape, strides, dims, 4, gpu.num_sms, gpu.threads_per_sm) or ()


def convolutions_of(operator: Operator, card: Card) -> ConvolutionCalls | None:
    """None for other operators, or if shapes or values were not recorded."""
    at = _VALUES_AT.get(operator.name)
    values = operator.values[at:] if at is not None else ()
    if at is None or len(operator.tensors) < at - 1 or len(values) < _NUM_VALUES or not values[5].isdecimal():
        return None
    num_dimensions = len(operator.tensors[0].shape) - 2
    given, w = (_as_two_dimensional(tensor) for tensor in operator.tensors[at - 3 :][:2])
    stride, padding, dilation, output_padding = (
        _extents(values[offset], num_dimensions, filler) for offset, filler in ((0, 1), (1, 0), (2, 1), (4, 0))
    )
    is_transposed = values[3] == "True"
    groups = int(values[5])
    if operator.name == BACKWARD:
        made = _as_two_dimensional(operator.tensors[0]).shape
    elif is_transposed:
        made = spread(
            given.shape,
            w.shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            output_padding=output_padding,
            groups=groups,
        )
    else:
        made = convolved(given.shape, w.shape, stride=stride, padding=padding, dilation=dilation)
    # cudnn_conv_suggest_memory_format
    is_last = given.element_bytes != 8 and any(is_channels_last(each.shape, each.strides) for each in (given, w))
    calls = (
        Convolution(
            direction=direction,
            x=made if is_transposed else given.shape,
            y=given.shape if is_transposed else made,
            w=w.shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            element_bytes=given.element_bytes,
            is_channels_last=is_last,
        )
        for direction in _directions(operator, is_transposed)
    )
    by_cudnn = is_by_cudnn(
        given.shape,
        w.shape,
        groups=groups,
        is_transposed=is_transposed,
        is_channels_last=is_last,
        is_bfloat16=given.element == "c10::BFloat16",
        compute_capability=card.gpu.compute_capability,
    )
    return ConvolutionCalls(calls=tuple(calls), is_by_cudnn=by_cudnn)


def _directions(operator: Operator, is_transposed: bool) -> Iterator[Direction]:
    if operator.name == FORWARD:
        yield "data" if is_transposed else "forward"
        return
    wanted = re.findall(r"True|False", operator.values[-1])
    if "False" not in wanted[:1]:
        yield "forward" if is_transposed else "data"
    if "False" not in wanted[1:2]:
        yield "weights"


def _as_two_dimensional(tensor: Tensor) -> Tensor:
    """view1d_as_2d: a one-dimensional convolution is computed as a two-dimensional one."""
    if len(tensor.shape) != 3:
        return tensor
    n, c, length = tensor.shape
    strides = tensor.strides
    if strides:
        strides = (*strides[:2], length * strides[2], strides[2])
    return Tensor(shape=(n, c, 1, length), element=tensor.element, strides=strides)


def _extents(value: str, num_dimensions: int, filler: int) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"-?\d+", value)] or [filler]
    numbers = numbers * num_dimensions if len(numbers) == 1 else numbers
    return (filler, *numbers) if num_dimensions == 1 else tuple(numbers)
