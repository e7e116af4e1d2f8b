"""Convolutions: what cuDNN is called with on a card for those the CPU computed, and what it takes for them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from foretell.cpu.analysis import Block, Job
from foretell.cpu.card import Card
from foretell.cpu.profile import Operator, Tensor
from foretell.overhead.convolution_plans import Direction
from foretell.overhead.convolutions import convolution_workspace
from foretell.overhead.kernels import reduction_buffer

FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"
_VALUES_AT = {FORWARD: 3, BACKWARD: 4}
"""Where the arguments that are no tensors begin: stride, padding, dilation, transposed, output padding, groups."""
_NUM_VALUES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """As cuDNN has it: one that is transposed is the data gradient of another, from its output to its input."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    element_bytes: int
    is_channels_last: bool
    is_by_cudnn: bool
    """Else PyTorch's own kernels compute it."""
    directions: tuple[Direction, ...]
    """In the order in which they are computed."""

    def workspace(self, direction: Direction, card: Card) -> int:
        return convolution_workspace(
            card.torch,
            compute_capability=card.gpu.compute_capability,
            direction=direction,
            x=self.x,
            y=self.y,
            w=self.w,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            element_bytes=self.element_bytes,
            is_channels_last=self.is_channels_last,
        )


def workspaces(job: Job, card: Card) -> Iterator[Block]:
    """Each is taken when the result is there that it is for, and the next one is not. Then the bias: a sum, which has a
    buffer like any other."""
    births = [block.born for block in job.blocks]
    for number, operator in enumerate(job.operators):
        convolution = convolution_of(operator, card)
        if convolution is None:
            continue
        inside = job.blocks[bisect_right(births, operator.begin) : bisect_right(births, operator.end)]
        results = [block for block in inside if block.died > operator.end]
        for at, direction in enumerate(convolution.directions if convolution.is_by_cudnn else ()):
            is_last = at + 1 == min(len(convolution.directions), len(results))
            end = operator.end if is_last or not results else results[at + 1].born
            num_bytes = convolution.workspace(direction, card)
            if num_bytes:
                yield _taken(num_bytes, end - 0.5, number, is_optional=True)
        for at, num_bytes in enumerate(_bias_buffers(operator, card)):
            yield _taken(num_bytes, operator.end - 0.3 + at / 100, number)


def _taken(num_bytes: int, born: float, operator: int, *, is_optional: bool = False) -> Block:
    return Block(
        num_bytes=num_bytes,
        born=born,
        died=born + 0.1,
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


def convolution_of(operator: Operator, card: Card) -> Convolution | None:
    """None for another operator, and where shapes or values were not recorded."""
    at = _VALUES_AT.get(operator.name)
    values = operator.values[at:] if at is not None else ()
    if at is None or len(operator.tensors) < at - 1 or len(values) < _NUM_VALUES or not values[5].isdigit():
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
        made = _spread(given.shape, w.shape, stride, padding, dilation, output_padding, groups)
    else:
        made = _convolved(given.shape, w.shape, stride, padding, dilation)
    # cudnn_conv_suggest_memory_format
    is_channels_last = given.element_bytes != 8 and (_is_channels_last(given) or _is_channels_last(w))
    return Convolution(
        x=made if is_transposed else given.shape,
        y=given.shape if is_transposed else made,
        w=w.shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        element_bytes=given.element_bytes,
        is_channels_last=is_channels_last,
        is_by_cudnn=_is_by_cudnn(given, w, groups, is_transposed, is_channels_last, card),
        directions=tuple(_directions(operator, is_transposed)),
    )


def _is_by_cudnn(
    given: Tensor, w: Tensor, groups: int, is_transposed: bool, is_channels_last: bool, card: Card
) -> bool:
    """select_conv_backend of ATen/native/Convolution.cpp, in short. Some depthwise ones in half precision go to cuDNN
    in NCHW too, which takes nothing for them."""
    if given.element == "c10::BFloat16" and card.gpu.compute_capability < (8, 0):
        return False
    is_depthwise = groups > 1 and given.shape[1] == groups and w.shape[0] % groups == 0 and not is_transposed
    return is_channels_last or not is_depthwise


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
    """view1d_as_2d: one dimension is done as two."""
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


def _convolved(
    x: tuple[int, ...], w: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    sizes = zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    return (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes))


def _spread(
    y: tuple[int, ...],
    w: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> tuple[int, ...]:
    sizes = zip(y[2:], w[2:], stride, padding, dilation, output_padding, strict=True)
    return (y[0], w[1] * groups, *((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes))


def _is_channels_last(tensor: Tensor) -> bool:
    """c10::is_channels_last_strides: sizes of 1 fit any order, so the strides have to say it."""
    sizes, strides = tensor.shape, tensor.strides
    if len(strides) not in (4, 5) or strides[1] == 0:
        return False
    smallest = 0
    for dimension in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[dimension] == 0 or strides[dimension] < smallest:
            return False
        if dimension == 0 and smallest == strides[1]:
            return False
        smallest = strides[dimension] * max(sizes[dimension], 1)
    return True
