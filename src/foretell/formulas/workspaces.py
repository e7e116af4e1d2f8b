"""Workspaces of the convolutions of a job, by the rules of `rules/`."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.features import ConvolutionCall, JobFeatures
from foretell.records import Gpu
from foretell.rules.convolution import Convolution, Direction
from foretell.rules.convolution_workspaces import workspace_by_rule
from foretell.versions import NEWEST_TORCH, Version, parse_version


def workspaces(features: JobFeatures, gpu: Gpu) -> list[int]:
    """The largest of the three directions, for each convolution."""
    version = parse_version(features.torch_version) or NEWEST_TORCH
    return [max(_directions(call, gpu, version), default=0) for call in features.convolutions or ()]


def _directions(call: ConvolutionCall, gpu: Gpu, version: Version) -> Iterator[int]:
    if len(call.x) not in (3, 4):
        return
    directions: tuple[Direction, ...] = ("forward", "data", "weights")
    is_depthwise = call.groups > 1 and call.w[1] == 1 and not call.is_transposed
    if is_depthwise and not call.is_channels_last:
        return  # PyTorch's own kernels
    one = (1,) * (4 - len(call.x))
    for direction in directions:
        convolution = Convolution(
            direction=direction,
            x=call.x[:2] + one + call.x[2:],
            y=call.y[:2] + one + call.y[2:],
            w=call.w[:2] + one + call.w[2:],
            stride=one + call.stride,
            padding=(0,) * len(one) + call.padding,
            dilation=one + call.dilation,
            groups=call.groups,
            element_bytes=call.element_bytes,
            is_channels_last=call.is_channels_last,
        )
        yield workspace_by_rule(convolution, gpu.compute_capability, version)
