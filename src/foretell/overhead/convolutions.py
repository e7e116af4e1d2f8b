"""Which rule stands in for cuDNN's workspaces of convolutions where there is no cuDNN to ask: the one read off newer
versions or the one fitted to older ones. For a recording (foretell.cpu) and for a device in Python (fake_cuda)."""

from __future__ import annotations

from foretell.overhead.convolution_plans import Direction, planned_workspace
from foretell.overhead.workspaces import ruled_workspace

PLANS_FROM = (2, 8)
"""The first torch whose cuDNN (9.10) is one the newer rule was read off; before, the rule of the virtual GPU."""


def convolution_workspace(
    torch_version: tuple[int, ...],
    *,
    compute_capability: tuple[int, int],
    direction: Direction,
    x: tuple[int, ...],
    y: tuple[int, ...],
    w: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    element_bytes: int,
    is_channels_last: bool,
) -> int:
    """In bytes, for shapes as cuDNN has them (see `planned_workspace`)."""
    if len(x) != 4:
        return 0  # no rule for videos
    if torch_version < PLANS_FROM:
        return ruled_workspace(compute_capability, direction, x, y, w, element_bytes)
    return planned_workspace(
        compute_capability=compute_capability,
        direction=direction,
        x=x,
        y=y,
        w=w,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        element_bytes=element_bytes,
        is_channels_last=is_channels_last,
    )
