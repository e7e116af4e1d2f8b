"""A convolution as cuDNN sees it: the input of every workspace rule, with shape arithmetic. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Direction = Literal["forward", "data", "weights"]
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Shapes are cuDNN's (N, C, H, W). A transposed convolution is the data gradient of the convolution from its output
    x to its input y; a 1d convolution is computed as 2d."""

    direction: Direction
    x: Sizes
    y: Sizes
    w: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    element_bytes: int
    is_channels_last: bool

    @property
    def x_bytes(self) -> int:
        return self.element_bytes * prod(self.x)

    @property
    def y_bytes(self) -> int:
        return self.element_bytes * prod(self.y)

    @property
    def w_bytes(self) -> int:
        return self.element_bytes * prod(self.w)

    @property
    def multiply_adds(self) -> int:
        """Includes products with padding; the same in all directions."""
        return prod(self.y) * prod(self.w[1:])


def convolved(
    x: Sequence[int],
    w: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Sizes:
    """The shape of y. at::native::conv_output_size."""
    sizes = zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    return (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes))


def spread(
    y: Sequence[int],
    w: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Sizes:
    """The shape of x, the output of a transposed convolution of y. at::native::conv_input_size."""
    sizes = zip(y[2:], w[2:], stride, padding, dilation, output_padding, strict=True)
    return (y[0], w[1] * groups, *((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes))


def is_channels_last(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """c10::is_channels_last_strides: sizes of 1 fit any order, so the strides decide."""
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


def is_by_cudnn(
    given: Sizes,
    w: Sizes,
    *,
    groups: int,
    is_transposed: bool,
    is_channels_last: bool,
    is_bfloat16: bool,
    compute_capability: tuple[int, int],
) -> bool:
    """select_conv_backend of ATen/native/Convolution.cpp, abridged, for use without torch. If false, PyTorch's own
    kernels compute it. Some depthwise ones in half precision go to cuDNN in NCHW too, but need no workspace."""
    if is_bfloat16 and compute_capability < (8, 0):
        return False
    is_depthwise = groups > 1 and given[1] == groups and w[0] % groups == 0 and not is_transposed
    return is_channels_last or not is_depthwise
