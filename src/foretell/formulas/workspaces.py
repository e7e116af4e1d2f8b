"""Workspaces of the convolutions of a job, by the rules of `rules/`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from foretell.features import ConvolutionCall, JobFeatures
from foretell.records import Gpu
from foretell.rules.convolution import Sizes
from foretell.rules.convolution_workspaces import workspaces_of_call
from foretell.versions import NEWEST_TORCH, PLANNED_CONVOLUTIONS, Version, parse_version

_LAST_PIXELS = (128 * 39, 128 * 79, 128 * 95, 19_999, 128 * 599, 199_999)
"""Pixels of y at which cuDNN's plan may be the last with a larger workspace, by the thresholds of the rule."""


def workspaces(features: JobFeatures, gpu: Gpu) -> list[int]:
    """The largest of the three directions, for each convolution. It never falls when the batch grows: where the rule
    does, because cuDNN copies nothing of larger images, it stays at the largest of the smaller batches."""
    if not features.convolutions:
        return []
    version = version_of(features.torch_version)
    return [workspace_of(call, gpu.compute_capability, version) for call in features.convolutions]


def workspace_of(call: ConvolutionCall, compute_capability: tuple[int, int], version: Version) -> int:
    shape = (
        call.x, call.y, call.w, call.stride, call.padding, call.dilation, call.groups, call.is_transposed,
        call.is_channels_last, call.element_bytes,
    )  # fmt: skip
    return _largest(*shape, compute_capability, version)


@lru_cache(maxsize=64)
def version_of(text: str) -> Version:
    return parse_version(text) or NEWEST_TORCH


@lru_cache(maxsize=1 << 15)
def _largest(
    x: Sizes, y: Sizes, w: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, is_transposed: bool,
    is_channels_last: bool, element_bytes: int, compute_capability: tuple[int, int], version: Version,
) -> int:  # fmt: skip
    if len(x) not in (3, 4):
        return 0
    pixels = max(1, y[-1] * (y[-2] if len(y) == 4 else 1))
    batches = {x[0]}
    if PLANNED_CONVOLUTIONS.holds_in(version):
        tiles = -(-y[1] // 128)
        batches |= set(_smaller(x[0], pixels, tiles))
    return max(
        max(
            workspaces_of_call(
                x=(batch, *x[1:]), y=(batch, *y[1:]), w=w, stride=stride, padding=padding, dilation=dilation,
                groups=groups, is_transposed=is_transposed, is_channels_last=is_channels_last,
                element_bytes=element_bytes, compute_capability=compute_capability, torch_version=version,
            )
        )
        for batch in batches
    )  # fmt: skip


def _smaller(batch: int, pixels: int, tiles: int) -> Iterator[int]:
    for most in _LAST_PIXELS:
        for limit in (most, most // tiles // 128 * 128):
            if 0 < limit // pixels < batch:
                yield limit // pixels
