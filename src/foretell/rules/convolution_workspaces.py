"""The workspace of a convolution if there is no cuDNN to ask: the rule derived from newer versions
(convolution_plans.py), or the older one fitted to measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..versions import PLANNED_CONVOLUTIONS, Version
from .convolution import Convolution, Direction, Sizes
from .convolution_plans import planned_workspace


def workspace_by_rule(convolution: Convolution, compute_capability: tuple[int, int], torch_version: Version) -> int:
    """The workspace in bytes."""
    if len(convolution.x) != 4:
        return 0  # no rule for 3d convolutions
    if not PLANNED_CONVOLUTIONS.holds_in(torch_version):
        return fitted_workspace(convolution, compute_capability)
    return planned_workspace(convolution, compute_capability)


def workspaces_of_call(
    *, x: Sequence[int], y: Sequence[int], w: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, is_transposed: bool, is_channels_last: bool, element_bytes: int,
    compute_capability: tuple[int, int], torch_version: Version,
) -> tuple[int, int, int]:  # fmt: skip
    """Of a convolution in one or two dimensions and of its two gradients: of the input, and of the filters."""
    if len(x) not in (3, 4):
        return 0, 0, 0
    if groups > 1 and w[1] == 1 and not is_transposed and not is_channels_last:
        return 0, 0, 0  # PyTorch's own kernels
    one = (1,) * (4 - len(x))

    def workspace(direction: Direction) -> int:
        convolution = Convolution(
            direction=direction, x=(x[0], x[1], *one, *x[2:]), y=(y[0], y[1], *one, *y[2:]),
            w=(w[0], w[1], *one, *w[2:]), stride=one + tuple(stride), padding=(0,) * len(one) + tuple(padding),
            dilation=one + tuple(dilation), groups=groups, element_bytes=element_bytes,
            is_channels_last=is_channels_last,
        )  # fmt: skip
        return workspace_by_rule(convolution, compute_capability, torch_version)

    forward, data, weights = workspace("forward"), workspace("data"), workspace("weights")
    return (data, forward, weights) if is_transposed else (forward, data, weights)


def next_workspace(convolution: Convolution, usual: int) -> int:
    """Of another engine, where one needs `usual` by rule: all three tensors copied once, else twice."""
    once = _one_copy(convolution)
    return once if usual < once else largest_workspace(convolution, usual)


def largest_workspace(convolution: Convolution, usual: int) -> int:
    """Of all engines, which cudnn.benchmark tries. cuDNN 9.8, asked for A100 and RTX 3060, has hardly any that need
    more than all three tensors twice."""
    return max(usual, 2 * _one_copy(convolution))


def _one_copy(convolution: Convolution) -> int:
    """0 for what engines compute without copies: grouped convolutions, and those in 3-D."""
    if len(convolution.x) != 4 or convolution.groups > 1:
        return 0
    return convolution.x_bytes + convolution.y_bytes + convolution.w_bytes


def fitted_workspace(convolution: Convolution, compute_capability: tuple[int, int]) -> int:
    """The rule of native/libraries/convolution.c, fitted to fp32 runs on an A100 (sm80): tensor-core engines copy x, y
    and w into NHWC with channels padded to 4. On other cards, no rule was found that beats assuming zero."""
    x, y, w = convolution.x, convolution.y, convolution.w
    if compute_capability != (8, 0) or len(x) != 4 or convolution.element_bytes != 4:
        return 0
    channels_in, channels_out, filter_size = x[1], y[1], w[2] * w[3]
    if w[1] != channels_in or channels_in <= 4 or filter_size == 1:  # grouped, first layer, 1x1
        return 0
    weights = 4 * _padded(channels_out) * _padded(channels_in) * filter_size
    copies = 4 * (_padded_elements(x) + _padded_elements(y)) + weights
    low, high = sorted((channels_in, channels_out))
    if convolution.direction == "data":
        return 2 * copies if high > 42 and channels_out <= 128 else copies
    if low <= 40:
        return 0
    tiles = -(-channels_in * filter_size // 128) * -(-channels_out // 128)
    # Partial sums, if few tiles are computed.
    return copies + 3 * weights if convolution.direction == "weights" and tiles <= 432 else copies


def _padded(channels: int) -> int:
    return -(-channels // 4) * 4


def _padded_elements(shape: Sizes) -> int:
    return prod((shape[0], _padded(shape[1]), *shape[2:]))
