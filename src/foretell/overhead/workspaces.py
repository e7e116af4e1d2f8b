"""How much memory cuDNN asks for to compute a convolution: the rule of virtual/native/convolution.c, for estimates that
do not run on the virtual GPU."""

from __future__ import annotations

from math import prod
from typing import Literal

Direction = Literal["forward", "data", "weights"]


def ruled_workspace(
    compute_capability: tuple[int, int],
    direction: Direction,
    x_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    element_bytes: int,
) -> int:
    """Fitted to fp32 runs on an A100 (sm80): tensor-core engines copy x, y and w into NHWC with channels padded to 4.
    On other cards no rule was found that beats none."""
    if compute_capability != (8, 0) or len(x_shape) != 4 or element_bytes != 4:
        return 0
    channels_in, channels_out, filter_size = x_shape[1], y_shape[1], w_shape[2] * w_shape[3]
    if w_shape[1] != channels_in or channels_in <= 4 or filter_size == 1:  # grouped, first layer, 1x1
        return 0
    weights = 4 * _padded(channels_out) * _padded(channels_in) * filter_size
    copies = 4 * (_padded_elements(x_shape) + _padded_elements(y_shape)) + weights
    low, high = sorted((channels_in, channels_out))
    if direction == "data":
        return 2 * copies if high > 42 and channels_out <= 128 else copies
    if low <= 40:
        return 0
    tiles = -(-channels_in * filter_size // 128) * -(-channels_out // 128)
    # Partial sums, where few tiles are at work.
    return copies + 3 * weights if direction == "weights" and tiles <= 432 else copies


def _padded(channels: int) -> int:
    return -(-channels // 4) * 4


def _padded_elements(shape: tuple[int, ...]) -> int:
    return prod((shape[0], _padded(shape[1]), *shape[2:]))
